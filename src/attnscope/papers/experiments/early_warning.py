"""Does the watch warn before the loss does? Small language models are driven into instability in three known ways.

Every seed gives five runs under `attnscope.watch`: one for each way to fail (`papers/trials/failing_runs.py`), and two healthy
ones, of which the one with norms behind the sums is what `no warm-up` would have been with a warm-up. A failure is
announced where an alarm of severity warning or critical sounds before the loss shows it: before it is 20% above its
lowest value so far or no number; a run that never learns anything shows when it is 20% above the lowest that its
healthy twin has reached. An alarm of that severity in a healthy run is a false one. Thresholds are the defaults of the
rules (`watching/alarms/`), which were set on runs of seeds from 100 on, as was the number of steps (the slowest of six
such seeds shows a rate that is too high at step 333); seeds below are judged. Seed 0 was seen before the number of
steps was raised from 300, no threshold was changed after it, and the other judged seeds were not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment
from attnscope.papers.trials.failing_runs import HEALTHY, WAYS, Size, failing_run, first_alarm, shown


@dataclass(frozen=True)
class Params:
    size: Size = field(default_factory=Size)


QUICK = Params(replace(Size(), steps=400))

Record = Mapping[str, Any]
TWIN = "healthy, post-norm"  # of `no warm-up`: the same model and rate with a warm-up


def key_of(way: str) -> str:
    """`rate_too_high`: what the claims call a way."""
    return way.replace(",", "").replace("-", "_").replace(" ", "_")


def judged(runs: Mapping[str, Record]) -> list[dict[str, Any]]:
    """For every run of a seed when the loss showed it, which alarm came first, and how many steps before."""
    found = []
    for way, run in runs.items():
        when = shown(run, runs[TWIN] if way == "no warm-up" else None) if way in WAYS else None
        alarm = first_alarm(run)
        announced = alarm is not None and when is not None and alarm["step"] < when
        found.append(
            {
                "way": way,
                "seed": run["seed"],
                "failed": when is not None,
                "shown": when,
                "alarm": None if alarm is None else alarm["step"],
                "rule": None if alarm is None else alarm["rule"],
                "sentence": None if alarm is None else alarm["sentence"],
                "announced": announced,
                "lead": when - alarm["step"] if announced and alarm is not None and when is not None else 0,
                "rules": sorted({a["rule"] for look in run["looks"] for a in look["alarms"] if not a["ended"]}),
                "last_loss": run["losses"][-1],
            }
        )
    return found


def figure(runs: Mapping[str, Record], records: Sequence[Record]) -> Figure:
    """The loss of one seed's runs, up to where it shows; the alarm stands on it as a short line down."""
    rows = []
    marks = {one["way"]: one["alarm"] for one in records}
    for way, run in runs.items():
        rows += [
            Point(step, loss, "loss", way)
            for step, loss in enumerate(run["losses"], start=1)
            if loss is not None and math.isfinite(loss) and (step % 5 == 0 or len(run["losses"]) < 50)
        ]
        step = marks[way]
        if step is not None:
            here = run["losses"][step - 1]
            rows += [Point(step, here, "first alarm", way), Point(step, 0.9 * here, "first alarm", way)]
    caption = "Loss against steps, one seed; where the first alarm sounds is marked. Runs end where the loss shows it."
    return Figure("losses", "Alarms before the loss shows it", caption, "step", "loss", tuple(rows))


def leads_table(records: Sequence[Record]) -> Figure:
    rows = [
        Point(f"{one['way']}, seed {one['seed']}", float(value), name)
        for one in records
        if one["way"] in WAYS
        for name, value in (("alarm at step", one["alarm"]), ("loss shows it at step", one["shown"]))
        if value is not None
    ]
    caption = "The first alarm of severity warning or more, and the step at which the loss shows the failure."
    return Figure("leads", "How early the alarm was", caption, "run", "step", tuple(rows), kind="table")


def lead(way: str, paper: str, statement: str, least: float = 20.0) -> Claim:
    quantity = f"lead_{key_of(way)}"
    return Claim(
        f"announced_{key_of(way)}",
        paper,
        statement,
        f"at least {least:g} steps before the loss shows it, at the median of the seeds",
        holds=(Bound(quantity, ">=", least),),
        fails=(Bound(quantity, "<=", 0.0),),
        given=(Bound(f"failed_{key_of(way)}", ">=", 1.0),),
    )


CLAIMS = (
    Claim(
        "failures_are_announced",
        "2309.14322",
        "Failures of training are announced by attention before the loss shows them.",
        "at least 80% of the failing runs",
        holds=(Bound("announced_share", ">=", 0.8),),
        fails=(Bound("announced_share", "<=", 0.2),),
        given=(Bound("failed_share", ">=", 0.8),),
    ),
    Claim(
        "healthy_runs_are_quiet",
        "2309.14322",
        "Healthy runs raise no alarm.",
        "at most 1 false alarm in 10 healthy runs",
        holds=(Bound("false_alarms_in_ten", "<=", 1.0),),
        fails=(Bound("false_alarms_in_ten", ">=", 5.0),),
    ),
    lead("rate too high", "2309.14322", "Logits grow and entropy falls before a rate that is too high shows."),
    lead("no warm-up", "2206.03126", "Without a warm-up behind norms tokens become alike before the loss tells."),
    lead("float16", "2402.17762", "A spike grows for a while before float16 overflows."),
)


@experiment(
    title="Early warning: alarms before the loss",
    paper="2309.14322",
    summary="Small language models that fail in three known ways, and healthy ones, and when the watch warns.",
    advice=(
        "Put `attnscope.watch` into runs that may fail and let a critical alarm stop them: thresholds were fixed on "
        "other seeds than those judged. What is on record says how many failures it announced before the loss did, "
        "and how often it cried wolf in healthy runs."
    ),
    presets={"quick": QUICK, "paper": Params()},
    takes={"quick": "a minute", "paper": "6 min"},
    seeds={"quick": 1, "paper": 5},
    claims=CLAIMS,
)
def early_warning(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    everything = {**WAYS, **HEALTHY}
    records: list[dict[str, Any]] = []
    first: dict[str, Record] = {}
    for seed in seeds:
        runs: dict[str, Record] = {}
        for way in everything.values():
            said = partial(session.advance, f"{way.name}, seed {seed}")
            work = partial(failing_run, way, params.size, seed, advance=partial(_said, said, params.size.steps))
            runs[way.name] = session.part(f"{key_of(way.name)}-{seed}", work)
        first = first or runs
        records += judged(runs)
    failing = [one for one in records if one["way"] in WAYS]
    healthy = [one for one in records if one["way"] in HEALTHY]
    measured: dict[str, list[float]] = {
        "announced_share": [sum(one["announced"] for one in failing) / len(failing)],
        "failed_share": [sum(one["failed"] for one in failing) / len(failing)],
        "false_alarms_in_ten": [10 * sum(one["alarm"] is not None for one in healthy) / len(healthy)],
    }
    for name in WAYS:
        own = [one for one in failing if one["way"] == name]
        measured[f"lead_{key_of(name)}"] = [float(one["lead"]) for one in own]
        measured[f"failed_{key_of(name)}"] = [float(one["failed"]) for one in own]
    measured["healthy_loss"] = [float(one["last_loss"]) for one in healthy if one["way"] != TWIN]
    figures = (figure(first, records), leads_table(records))
    return Result(measured, tuple(records), tuple(one for one in figures if one.rows), remarks(records))


def _said(advance: Any, steps: int, step: int) -> None:
    advance(step, steps)


def remarks(records: Sequence[Record]) -> tuple[str, ...]:
    failing = [one for one in records if one["way"] in WAYS and one["failed"]]
    words = [f"{one['way']} by {one['rule']} at step {one['alarm']}, {one['lead']} before" for one in failing]
    false = [f"{one['way']}, seed {one['seed']}: {one['sentence']}" for one in records if one["way"] in HEALTHY]
    heard = [word for word, one in zip(false, _healthy(records), strict=True) if one["alarm"] is not None]
    return (
        f"Announced first: {'; '.join(words)}.",
        f"False alarms: {' '.join(heard) or 'none'}",
    )


def _healthy(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if one["way"] in HEALTHY]
