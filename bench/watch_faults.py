"""`python -m bench.watch_faults FOLDER`: does a watch find faults that are switched on during real training?

Trains the runs of `bench/fault_runs.py` that are missing in FOLDER (about an hour of one core for all), judges
their looks with the current alarm rules, and writes bench/watch_faults.json and the tables of docs/watch.md. With
`--judge` nothing is trained.

A fault counts as found if an alarm of severity warning or more begins at or after the step with which the fault begins.
The loss shows a fault if it is NaN, or if the mean of five steps is 20% above that of the same steps without the fault:
the run `CONTROL` has the same weights, batches and dropout. Thresholds were set on seed 0 of microformer and rxnfp
(`SET_ON`); everything else is judged.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from attnscope.commands.timeline.bands import departures
from attnscope.commands.timeline.read import read_run
from attnscope.commands.watch.alarm_judge import AlarmJudge
from attnscope.commands.watch.look import Alarm
from bench.fault_runs import runs_of
from bench.fault_training import AFTER, EVERY, SUBJECTS
from bench.planted_faults import CONTROLS, FAULTS, PLACED
from tools.marked import put_between_marks

RESULTS = Path(__file__).with_name("watch_faults.json")
PAGE = Path(__file__).parent.parent / "docs" / "watch.md"
WRITER = "bench/watch_faults.py"
SEEDS = (0, 1, 2, 3)
SET_ON = {("microformer", 0), ("rxnfp", 0)}
SOON = 10  # steps within which an alarm counts as soon
RISEN, SMOOTHED = 1.2, 5
READ_OFF = {
    "learning rate x 10": "learning_rate_jump",
    "learning rate x 3": "learning_rate_jump",
    "optimiser state lost": "optimizer_reset",
}  # faults that a rule reads off the optimiser
CONTROL = "other order 0"  # the order of the faulted runs


EARLIER = (
    *("entropy_collapse", "max_logit_growth", "spike_growth", "layers_collapsing", "vanishing_gradients"),
    *("inactive_heads_appear", "sinks_forming", "nonfinite"),
)  # rules that read attention, gradients and NaN only


def judged(run: Path, losses: Sequence[float | None]) -> list[Alarm]:
    """Return all alarms that the current rules raise on the looks of a run."""
    judge = AlarmJudge()
    alarms: list[Alarm] = []
    for look in read_run(run).looks:
        broken = 0 < look.step <= len(losses) and losses[look.step - 1] is None
        alarms += judge(replace(look, alarms=(), loss=math.nan if broken else look.loss))
    return [alarm for alarm in alarms if not alarm.ended and not alarm.renewed]


def shown(losses: Sequence[float | None], control: Sequence[float], since: int) -> int | None:
    """Return the first step at which the loss shows a fault, or None: NaN, or 20% above the control in the mean."""
    for step in range(since, len(losses) + 1):
        if losses[step - 1] is None:
            return step
        begin = max(since - 1, step - SMOOTHED)
        mean, usual = (sum(x or 0.0 for x in own[begin:step]) for own in (losses, control))
        if step - begin == SMOOTHED and mean > RISEN * usual:
            return step
    return None


def outcome(subject: str, seed: int, name: str, run: Path) -> dict[str, Any]:
    """Return what the watch said about one run."""
    told = json.loads((run / "losses.json").read_text())
    since, losses, begins = told["since"], told["losses"], SUBJECTS[subject].before
    alarms = judged(run, losses)
    loud = [alarm for alarm in alarms if alarm.severity != "note"]
    own = [alarm for alarm in loud if alarm.step >= (since if name in FAULTS else begins + 1)]
    first = min((alarm.step for alarm in own), default=None)
    rules = sorted({alarm.rule for alarm in own if alarm.step == first})
    block = 0 if name == "mask lost" else told["block"]
    placed = [alarm for alarm in own if alarm.layers == (block,)] if name in PLACED else []
    control = json.loads((run.parent / CONTROL / "losses.json").read_text())["losses"]
    risen = shown(losses, control, since)
    return {
        "subject": subject,
        "seed": seed,
        "run": name,
        "judged": (subject, seed) not in SET_ON,
        "later": None if first is None else first - since,
        "rules": rules,
        "all_rules": sorted({alarm.rule for alarm in own}),
        "left_band": _left_band(run, since if name in FAULTS else begins + 1),
        "located": bool(placed) if name in PLACED else None,
        "loss_later": None if risen is None else risen - since,
        "alarms": len(own),
        "notes": sorted({alarm.rule for alarm in alarms if alarm.severity == "note" and alarm.step > begins}),
        "steps": len(losses) - begins,
    }


def prefix_outcome(subject: str, seed: int, run: Path) -> dict[str, Any]:
    alarms = [alarm for alarm in judged(run, ()) if alarm.severity != "note"]
    rules = sorted({alarm.rule for alarm in alarms})
    return {
        "subject": subject,
        "seed": seed,
        "run": "before the change",
        "judged": (subject, seed) not in SET_ON,
        "alarms": len(alarms),
        "all_rules": rules,
        "left_band": _left_band(run, 0),
        "steps": SUBJECTS[subject].before,
    }


def _left_band(run: Path, since: int) -> list[str]:
    """Return the numbers that left their bands at or after a step, as `timeline` names them."""
    return [f"{one.name} {one.layer} {one.step}" for one in departures(read_run(run)) if one.step >= since]


def outcomes(folder: Path) -> list[dict[str, Any]]:
    found = []
    for subject in SUBJECTS:
        for seed in SEEDS:
            own = folder / subject / str(seed)
            names = [name for name in (*FAULTS, *CONTROLS) if (own / name / "losses.json").exists()]
            names = names if CONTROL in names else []
            found += [outcome(subject, seed, name, own / name) for name in names]
            found += [prefix_outcome(subject, seed, own / "prefix")] if names else []
    return found


def faults_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| fault | runs | found | by the loss or before | within {SOON} steps | steps later: median, most | located | "
        "loss shows it: runs, after steps | first alarm | found by rules on attention alone | a number left its band |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in FAULTS:
        own = [row for row in rows if row["run"] == name]
        if own:
            lines.append(f"| {name} | {' | '.join(_cells(own))} |")
    return "\n".join(lines)


def _cells(own: list[dict[str, Any]]) -> Iterator[str]:
    hits = [row for row in own if row["later"] is not None]
    later = [row["later"] for row in hits]
    placed = [row["located"] for row in own if row["located"] is not None]
    losses = [row["loss_later"] for row in own if row["loss_later"] is not None]
    rules = sorted({rule for row in hits for rule in row["rules"]})
    yield str(len(own))
    yield str(len(hits))
    yield str(sum(row["loss_later"] is None or row["later"] <= row["loss_later"] for row in hits))
    yield str(sum(steps <= SOON for steps in later))
    yield f"{median(later):.0f}, {max(later)}" if later else "–"
    yield f"{sum(placed)} of {len(placed)}" if placed else "–"
    yield f"{len(losses)}, {median(losses):.0f}" if losses else "0"
    yield ", ".join(f"`{rule}`" for rule in rules) or "–"
    yield str(sum(any(rule in EARLIER for rule in row["all_rules"]) for row in own))
    yield str(sum(bool(row["left_band"]) for row in own))


def controls_table(rows: list[dict[str, Any]]) -> str:
    kinds = {"other order": "only another order of the data", "warm restart": "warm restart of the learning rate"}
    kinds |= {"other book": "another book", "before": "the steps before, once a seed"}
    lines = [
        "| control | runs | steps | runs with false alarms | alarms per 1,000 steps | rules | a number left its band |",
        "|---|---|---|---|---|---|---|",
    ]
    for start, words in (*kinds.items(), ("", "all")):
        own = [row for row in rows if row["run"] not in FAULTS and row["run"].startswith(start)]
        steps, alarms = sum(row["steps"] for row in own), sum(row["alarms"] for row in own)
        rules = ", ".join(f"`{rule}`" for rule in sorted({rule for row in own for rule in row["all_rules"]})) or "–"
        wrong, left = sum(row["alarms"] > 0 for row in own), sum(bool(row["left_band"]) for row in own)
        rate = f"{1000 * alarms / max(steps, 1):.2f}"
        lines.append(f"| {words} | {len(own)} | {steps:,} | {wrong} | {rate} | {rules} | {left} |")
    return "\n".join(lines)


def tables(rows: list[dict[str, Any]]) -> str:
    judged_rows = [row for row in rows if row["judged"]]
    set_on = [row for row in rows if not row["judged"] and row["run"] not in FAULTS]
    false = sum(row["alarms"] for row in set_on), sum(row["steps"] for row in set_on)
    words = f"On the runs on which thresholds were set: {false[0]} false alarms in {false[1]:,} steps without a fault."
    blind = [f"{name}: {_blind(judged_rows, name)}" for name in READ_OFF]
    rules = ", ".join(dict.fromkeys(READ_OFF.values()))
    unread = f"Found without the rules that read the optimiser ({rules}): {'; '.join(blind)}."
    return "\n\n".join((faults_table(judged_rows), controls_table(judged_rows), words, unread))


def _blind(rows: list[dict[str, Any]], name: str) -> str:
    """Return how many runs with a fault ring without the rule that reads the fault off the optimiser."""
    own = [row for row in rows if row["run"] == name]
    return f"{sum(any(rule not in READ_OFF.values() for rule in row['all_rules']) for row in own)} of {len(own)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--judge", action="store_true", help="train nothing")
    chosen = parser.parse_args()
    if not chosen.judge:
        import torch

        torch.set_num_threads(1)
        for seed in SEEDS:
            for subject in SUBJECTS.values():
                for name in runs_of(subject, seed, chosen.folder):
                    print(name, flush=True)
    rows = outcomes(chosen.folder)
    settings = {"every": EVERY, "after": AFTER, "set_on": sorted(map(list, SET_ON)), "seeds": list(SEEDS)}
    RESULTS.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n", "utf-8")
    page = PAGE.read_text("utf-8")
    PAGE.write_text(put_between_marks(page, "faults", WRITER, tables(rows)), "utf-8")
    print(tables(rows))


if __name__ == "__main__":
    main()
