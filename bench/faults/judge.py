"""Score the kept surveys: what `scan` says alone, what `compare` says beside the untouched model, and false alarms.

A fault counts if it raises the loss by at least 0.05 nats. `scan` detects it if a finding is *wrong*, and locates it if
such a finding names its block. `compare` detects it if it says that the model is worse or names a block where both
part, and locates it if that is the block of the fault. On controls, a *wrong* finding or a *worse* is a false alarm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attnscope
from attnscope.stats.intervals import share_interval
from bench.faults.cases import names
from bench.faults.plants import FAULTS
from tools.marked import put_between_marks

RAISED = 0.05  # nats
BANDS = ((-9.0, 0.0), (0.0, 0.05), (0.05, 0.2), (0.2, 1.0), (1.0, 99.0))
SET_ON = ("smollm2", "pocket")  # thresholds were set on these subjects, and are judged on the others
ONCE = ("zero_lora", "bfloat16")
RESULT, PAGE = Path("bench/faults.json"), Path("docs/faults.md")


def judge_all(folder: Path) -> None:
    """Judge every subject with all its cases, and write the result and its tables."""
    every = sum(1 for _ in names())
    whole = [place for place in sorted(folder.iterdir()) if len(list(place.glob("*.?.json"))) == every]
    cases = [case for subject in whole for case in judge(subject)]
    RESULT.write_text(json.dumps({"cases": cases}, indent=1) + "\n", encoding="utf-8")
    for line in summary(cases):
        print(line)
    if PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        text = "\n".join(summary(cases)).strip()
        PAGE.write_text(put_between_marks(page, "faults", "python -m bench.faults judge", text), encoding="utf-8")
    from bench.faults import peers  # which reads this result

    if peers.RESULT.exists():
        peers.write_table()


def judge(subject: Path) -> Iterable[dict[str, Any]]:
    """Yield one row for each case of a subject."""
    healthy = attnscope.Survey.load(subject / "untouched.0.survey.json.gz")
    assert healthy.trial is not None
    for file in sorted(subject.glob("*.?.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        again = facts["name"] in ONCE and facts["seed"] > 0  # these controls do not depend on the seed
        if "not_applicable" in facts or again:
            continue
        row = {"subject": subject.name, **facts}
        if "refused" in facts:
            yield row | {"scan": True, "compare": True, "scan_located": False, "compare_located": False, "raised": None}
            continue
        survey = attnscope.Survey.load(file.with_name(file.name.replace(".json", ".survey.json.gz")))
        wrong = [f for f in attnscope.diagnose(survey) if f.severity == "wrong"]
        places = places_of(facts)
        row |= {
            "scan": bool(wrong),
            "scan_kinds": sorted({f.kind for f in wrong}),
            "scan_located": any(places & set(f.layers) for f in wrong),
            "raised": None if facts["loss"] is None else facts["loss"] - healthy.trial.mean_loss,
        }
        compared = attnscope.compare(healthy, survey)
        parting = compared.parting
        layer = None if parting is None else parting.layer
        row |= {
            "compare": compared.worse() or (parting is not None and layer is not None and not parting.hint),
            "compare_worse": compared.worse(),
            "compare_located": layer in places,
            "compare_says": parting.sentence if parting is not None else "",
        }
        yield row


def places_of(facts: dict[str, Any]) -> set[int | None]:
    """Return the blocks that may be named: the block of the fault, and the other one of two exchanged blocks."""
    layer = facts.get("layer")
    if layer is None:
        return set()
    apart = {"small": 1, "medium": 2, "large": 3}.get(str(facts.get("grade")), 0)
    return {layer, layer + apart} if facts["name"] == "swapped_blocks" else {layer}


def summary(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tables as lines of Markdown."""
    lines: list[str] = []
    for title, chosen in (
        ("models that thresholds were set on", [c for c in cases if c["subject"] in SET_ON]),
        ("other models", [c for c in cases if c["subject"] not in SET_ON]),
    ):
        faults = [c for c in chosen if c["kind"] != "control"]
        damaging = [c for c in faults if c["raised"] is None or c["raised"] >= RAISED]
        controls = [c for c in chosen if c["kind"] == "control"]
        if not chosen:
            continue
        names = ", ".join(dict.fromkeys(c["subject"] for c in chosen))
        lines += [
            f"**{title.capitalize()}** ({names}): {len(faults)} faults, of which {len(damaging)} raise the loss by"
            f" {RAISED} nats or more; {len(controls)} controls.",
            "",
        ]
        lines += ["| | by `compare` | by `scan` alone |", "|---|---|---|"]
        local = [c for c in damaging if FAULTS[c["name"]].local]
        lines.append(f"| detected | {rate(damaging, 'compare')} | {rate(damaging, 'scan')} |")
        lines.append(
            f"| block named, of faults in one block | {rate(local, 'compare_located')} |"
            f" {rate(local, 'scan_located')} |"
        )
        lines.append(f"| false alarms on controls | {rate(controls, 'compare_worse')} | {rate(controls, 'scan')} |")
        lines += [
            "",
            "| model | faults that count | `compare` | `scan` | false alarms of `scan` |",
            "|---|---|---|---|---|",
        ]
        for subject in dict.fromkeys(c["subject"] for c in chosen):
            own, quiet = ([c for c in some if c["subject"] == subject] for some in (damaging, controls))
            lines.append(
                f"| {subject} | {len(own)} | {short(own, 'compare')} | {short(own, 'scan')} | {short(quiet, 'scan')} |"
            )
        lines += ["", "| kind of fault | cases | `compare` | block | `scan` | block |", "|---|---|---|---|---|---|"]
        for kind in dict.fromkeys(fault.kind for fault in FAULTS.values()):
            own = [c for c in damaging if c["kind"] == kind]
            near = [c for c in own if FAULTS[c["name"]].local]
            if own:
                lines.append(
                    f"| {kind} | {len(own)} | {short(own, 'compare')} | {short(near, 'compare_located')} |"
                    f" {short(own, 'scan')} | {short(near, 'scan_located')} |"
                )
        lines += ["", "| loss rises by | cases | `compare` | `scan` |", "|---|---|---|---|"]
        for low, high in BANDS:
            own = [c for c in faults if c["raised"] is not None and low <= c["raised"] < high]
            if own:
                what = (
                    "less than 0" if high == 0 else f"{max(low, 0):g} to {high:g}" if high < 99 else f"{low:g} or more"
                )
                lines.append(f"| {what} | {len(own)} | {short(own, 'compare')} | {short(own, 'scan')} |")
        lines.append("")
    return lines


def rate(cases: Sequence[dict[str, Any]], name: str) -> str:
    if not cases:
        return "-"
    right = sum(bool(case.get(name)) for case in cases)
    share, low, high = share_interval(right, len(cases))
    return f"{100 * share:.0f}% ({100 * low:.0f}-{100 * high:.0f}%; {right} of {len(cases)})"


def short(cases: Sequence[dict[str, Any]], name: str) -> str:
    right = sum(bool(case.get(name)) for case in cases)
    return f"{right} of {len(cases)}" if cases else "-"
