"""Does the watch warn before the loss does? Small language models are made unstable in three known ways.

For every seed there are five runs under `attnscope.watch`: one for each way to fail (`papers/trials/failing_runs.py`)
and two healthy ones, of which the post-norm one is `no warm-up` with a warm-up. The loss shows a failure when it is NaN
or 20% above its lowest value so far or, in a run that never learns, 20% above the lowest loss that its healthy twin has
reached. A failure is announced if an alarm of severity warning or critical comes earlier. An alarm of that severity in
a healthy run is a false alarm. Thresholds are the defaults of the rules (`attnscope.alarms`), chosen on runs with seeds
from 100 on, as was the number of steps (in the slowest of six such seeds, the rate that is too high shows at step 333);
seeds below 100 are judged. Seed 0 was run before the number of steps was raised from 300; no threshold was changed
afterwards, and the other judged seeds were not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment
from attnscope.papers.trials.curves import Row, Rows, select
from attnscope.papers.trials.failing_runs import HEALTHY, WAYS, Size, failing_run, failure_step, first_alarm


@dataclass(frozen=True)
class Params:
    size: Size = field(default_factory=Size)


QUICK = Params(replace(Size(), steps=400))
TWIN = "healthy, post-norm"  # the control of `no warm-up`: the same model and rate with a warm-up


def key_of(way: str) -> str:
    """Return the form of its name that a way to fail has in quantities and claims, such as `rate_too_high`."""
    return way.replace(",", "").replace("-", "_").replace(" ", "_")


def judged(runs: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return a record per run of a seed: when the loss showed the failure, the first alarm, and its lead in steps."""
    records = []
    for way, run in runs.items():
        when = failure_step(run, runs[TWIN] if way == "no warm-up" else None) if way in WAYS else None
        alarm = first_alarm(run)
        step = None if alarm is None else alarm["step"]
        lead = when - step if when is not None and step is not None and step < when else 0
        records.append(
            {
                "way": way,
                "seed": run["seed"],
                "failed": when is not None,
                "shown": when,
                "alarm": step,
                "rule": None if alarm is None else alarm["rule"],
                "sentence": None if alarm is None else alarm["sentence"],
                "announced": lead > 0,
                "lead": lead,
                "rules": sorted({a["rule"] for look in run["looks"] for a in look["alarms"] if not a["ended"]}),
                "last_loss": run["losses"][-1],
            }
        )
    return records


def losses_figure(runs: Mapping[str, Row], records: Rows) -> Figure:
    """Draw the losses of one seed's runs; a short vertical line marks the first alarm."""
    points = []
    alarms = {row["way"]: row["alarm"] for row in records}
    for way, run in runs.items():
        losses = run["losses"]
        points += [
            Point(step, loss, "loss", way)
            for step, loss in enumerate(losses, start=1)
            if loss is not None and math.isfinite(loss) and (step % 5 == 0 or len(losses) < 50)
        ]
        if (step := alarms[way]) is not None:
            points += [Point(step, factor * losses[step - 1], "first alarm", way) for factor in (1, 0.9)]
    caption = "Loss against steps, one seed, with the first alarm. Runs end where the loss shows the failure."
    return Figure("losses", "Alarms before the loss shows the failure", caption, "step", "loss", tuple(points))


def leads_table(records: Rows) -> Figure:
    points = [
        Point(f"{row['way']}, seed {row['seed']}", float(row[column]), name)
        for row in records
        if row["way"] in WAYS
        for name, column in (("alarm at step", "alarm"), ("loss shows it at step", "shown"))
        if row[column] is not None
    ]
    caption = "The first alarm of severity warning or more, and the step at which the loss shows the failure."
    return Figure("leads", "How early the alarm was", caption, "run", "step", tuple(points), kind="table")


ANNOUNCED = (
    ("rate_too_high", "2309.14322", "Logits grow and entropy falls before a rate that is too high shows in the loss."),
    ("no_warm_up", "2206.03126", "Without a warm-up, post-norm tokens become alike before the loss shows it."),
    ("float16", "2402.17762", "A spike grows for a while before float16 overflows."),
)
CLAIMS = claims(
    "2309.14322",
    """
    failures_are_announced: Attention announces failures of training before the loss shows them.
        expected: at least 80% of the failing runs
        holds: announced_share >= 0.8; fails: announced_share <= 0.2; given: failed_share >= 0.8
    healthy_runs_are_quiet: Healthy runs raise no alarm.
        expected: at most 1 false alarm in 10 healthy runs
        holds: false_alarms_in_ten <= 1; fails: false_alarms_in_ten >= 5
    """,
    *(
        f"""
        announced_{key} [{paper}]: {statement}
            expected: at least 20 steps before the loss shows it, at the median of the seeds
            holds: lead_{key} >= 20; fails: lead_{key} <= 0; given: failed_{key} >= 1
        """
        for key, paper, statement in ANNOUNCED
    ),
)


@experiment(
    title="Early warning: alarms before the loss",
    paper="2309.14322",
    summary="Small language models that fail in three known ways, healthy ones, and when the watch warns.",
    advice=(
        "Put `attnscope.watch` into runs that may fail and let a critical alarm stop them: its thresholds were fixed "
        "on other seeds than those judged here. The recorded runs show how many failures it announced before the loss "
        "did, and how often it raised a false alarm in healthy runs."
    ),
    presets={"quick": QUICK, "paper": Params()},
    takes={"quick": "a minute", "paper": "6 min"},
    seeds={"quick": 1, "paper": 5},
    claims=CLAIMS,
)
def early_warning(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    records: list[dict[str, Any]] = []
    first: dict[str, Row] = {}

    def run_of(way: str, seed: int) -> Row:
        def advance(step: int) -> None:
            session.advance(f"{way}, seed {seed}", step, params.size.steps)

        return failing_run({**WAYS, **HEALTHY}[way], params.size, seed, advance=advance)

    for seed in seeds:
        runs: dict[str, Row] = {
            way: session.part(f"{key_of(way)}-{seed}", partial(run_of, way, seed)) for way in (*WAYS, *HEALTHY)
        }
        first = first or runs
        records += judged(runs)
    failing = [row for row in records if row["way"] in WAYS]
    healthy = [row for row in records if row["way"] in HEALTHY]
    measured: dict[str, list[float]] = {
        "announced_share": [sum(row["announced"] for row in failing) / len(failing)],
        "failed_share": [sum(row["failed"] for row in failing) / len(failing)],
        "false_alarms_in_ten": [10 * sum(row["alarm"] is not None for row in healthy) / len(healthy)],
    }
    for way in WAYS:
        for column in ("lead", "failed"):
            measured[f"{column}_{key_of(way)}"] = [float(row[column]) for row in select(failing, way=way)]
    measured["healthy_loss"] = [float(row["last_loss"]) for row in healthy if row["way"] != TWIN]
    figures = (losses_figure(first, records), leads_table(records))
    first_alarms = "; ".join(
        f"{row['way']} by {row['rule']} at step {row['alarm']}, {row['lead']} before"
        for row in failing
        if row["failed"]
    )
    false = [f"{row['way']}, seed {row['seed']}: {row['sentence']}" for row in healthy if row["alarm"] is not None]
    remarks = (f"First alarms: {first_alarms}.", f"False alarms: {' '.join(false) or 'none'}")
    return Result(measured, tuple(records), tuple(figure for figure in figures if figure.rows), remarks)
