"""Ask other tools about the planted faults, and set them beside attnscope: bench/faults_peers.json and docs/faults.md.

The same definition for all: a fault that raises the loss by RAISED nats or more is detected if the tool says that
something is wrong, and its block is named if it is among the blocks that the tool names. On a control, the same is a
false alarm. attnscope's rows are those of bench/faults.json, which `judge` writes, on the same cases.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.faults.body import NotApplicableError
from bench.faults.cases import bed_of, names, planted
from bench.faults.judge import PAGE, RAISED, places_of, rate, short
from bench.faults.judge import RESULT as JUDGED
from tools.marked import put_between_marks

RESULT = Path("bench/faults_peers.json")
SUBJECTS = ("iglm_small", "iglm", "rxnfp", "antiberty")
Row = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool of the table. `verdict` says whether it tells healthy from damaged at all."""

    name: str
    beside: bool  # needs the healthy model
    verdict: bool = True
    local: bool = True  # can name a block


TOOLS = {
    "compare": Tool("attnscope `compare`, *worse* or a block", beside=True),
    "worse": Tool("attnscope `compare`, *worse* alone", beside=True),
    "scan": Tool("attnscope `scan`", beside=False),
    "loss": Tool("loss on the same windows", beside=True, local=False),
    "weights": Tool("diff of the weights", beside=True),
    "torchlens_compare": Tool("torchlens `first_divergence`", beside=True),
    "torchlens_audit": Tool("torchlens `audit_trace`, `audit_params`", beside=False),
    "ww": Tool("WeightWatcher, warnings", beside=False),
    "ww_new": Tool("WeightWatcher, warnings that the healthy model lacks", beside=True),
    "interpkit_diff": Tool("interpkit `diff`, first of its ranking", beside=True, verdict=False),
}


def peers_all(subjects: Iterable[str] = ()) -> None:
    """Ask every tool about every case of some subjects, and write the table.

    Kept verdicts are not asked for again, but for those of cases in which a tool failed.
    """
    logging.getLogger("weightwatcher").setLevel(logging.ERROR)
    kept = {_key(row): row for row in (load() if RESULT.exists() else [])}
    for subject in subjects or SUBJECTS:
        done = {key for key, row in kept.items() if not any(failed for _, _, *failed in row["says"].values())}
        for row in _ask(subject, done):
            kept[_key(row)] = row
            save(list(kept.values()))
    write_table()


def _key(row: Row) -> tuple[str, str, int]:
    return row["subject"], row["name"], row["seed"]


def _ask(subject: str, done: Set[tuple[str, str, int]]) -> Iterator[Row]:
    """Yield the verdicts on the cases of a subject that are not done."""
    from bench.faults.peer_tools import Beside, verdicts

    bed = bed_of(subject)
    beside = Beside(bed)
    for name, seed in names():
        start = time.monotonic()
        if (subject, name, seed) in done:
            continue
        try:
            with planted(bed, name, seed) as case:
                rise, said = verdicts(beside, case)
        except NotApplicableError:
            continue
        known = {"subject": subject, "name": name, "seed": seed, **case.facts}
        yield known | {
            "raised": None if rise is None else round(rise, 5),
            "says": {tool: [v.detected, list(v.blocks), *([v.failed] if v.failed else [])] for tool, v in said.items()},
        }
        words = ", ".join(f"{tool} {v.failed or v.detected} {list(v.blocks)}" for tool, v in said.items())
        print(f"{subject} {name} {seed}: +{rise} {words}, {time.monotonic() - start:.1f} s", flush=True)


def load() -> list[Row]:
    rows: list[Row] = json.loads(RESULT.read_text(encoding="utf-8"))["cases"]
    return rows


def save(rows: Sequence[Row]) -> None:
    """Write one case a line, so that a change is seen in a diff."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    RESULT.write_text(f'{{"cases": [\n{lines}\n]}}\n', encoding="utf-8")


def joined(theirs: Sequence[Row], ours: Sequence[Row]) -> list[Row]:
    """Return the cases that both have, with attnscope's verdicts among the others, as *detected* and *located*."""
    known = {_key(row): row for row in ours}
    rows = []
    for row in theirs:
        own = known.get(_key(row))
        if own is None:
            continue
        if own.get("layer", row.get("layer")) != row.get("layer"):
            raise SystemExit(
                f"{row['subject']} {row['name']} {row['seed']}: another place than in {JUDGED}; ask again."
            )
        places = places_of(row)
        says = {
            tool: {"detected": detected, "located": bool(places & set(blocks))}
            for tool, (detected, blocks, *_) in row["says"].items()
        }
        worse = own.get("compare_worse", own["compare"])  # a model that attnscope refuses is compared with nothing
        for tool, detected, located in (
            ("scan", own["scan"], own["scan_located"]),
            ("compare", own["compare"], own["compare_located"]),
            ("worse", worse, worse and own["compare_located"]),
        ):
            says[tool] = {"detected": detected, "located": located}
        rows.append({**row, "says": says})
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """Return the table as lines of Markdown."""
    faults = [row for row in rows if row["kind"] != "control"]
    damaging = [row for row in faults if row["raised"] is None or row["raised"] >= RAISED]
    local = [row for row in damaging if row.get("layer") is not None]
    controls = [row for row in rows if row["kind"] == "control"]
    slight = [row for row in faults if row not in damaging]
    subjects = ", ".join(dict.fromkeys(row["subject"] for row in rows))
    lines = [
        f"{len(damaging)} faults that raise the loss by {RAISED} nats or more, {len(local)} of them in one block, and"
        f" {len(controls)} controls, in {subjects}.",
        "",
        "| tool | needs the healthy model? | detected | block named | false alarms | slight faults reported |",
        "|---|---|---|---|---|---|",
    ]
    for key, tool in TOOLS.items():
        detected = _share(damaging, key, "detected") if tool.verdict else "no verdict"
        named = _share(local, key, "located") if tool.local else "names none"
        alarms = _share(controls, key, "detected") if tool.verdict else "no verdict"
        less = short(_facts(slight, key, "detected"), "detected") if tool.verdict else "no verdict"
        needs = "yes" if tool.beside else "no"
        lines.append(f"| {tool.name} | {needs} | {detected} | {named} | {alarms} | {less} |")
    return lines


def _facts(rows: Sequence[Row], tool: str, fact: str) -> list[Row]:
    return [{fact: row["says"][tool][fact]} for row in rows]


def _share(rows: Sequence[Row], tool: str, fact: str) -> str:
    return rate(_facts(rows, tool, fact), fact)


def write_table() -> None:
    """Write the table into the page, from the verdicts of all tools that are kept."""
    ours = json.loads(JUDGED.read_text(encoding="utf-8"))["cases"]
    theirs = load()
    rows = joined(theirs, ours)
    left = {row["subject"] for row in theirs} - {row["subject"] for row in rows}
    if left:
        print(f"Left out of the table, because attnscope's verdicts are not in {JUDGED}: {', '.join(sorted(left))}")
    if rows:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
        print("\n".join(table(rows)))


def with_table(page: str, rows: Sequence[Row]) -> str:
    """Return the page with the table of these cases."""
    return put_between_marks(page, "peers", "python -m bench.faults peers", "\n".join(table(rows)))
