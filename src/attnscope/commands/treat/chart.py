"""Charts of a treatment: heads in every arm, loss in training, differences of held-out loss, and pruning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.treat.record import Treatment
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import Figure, Point

SMOOTHED = 20  # steps in one point of a training curve, at most a tenth of all
NEAR = 4  # the chart of costs ends where the cost is this many times the budget


def figures(record: Treatment) -> tuple[Figure, ...]:
    """Return the charts of a treatment, the main one first."""
    if record.pruning is not None:
        made = [_cost(record), _pruning(record)]
    else:
        made = [_heads(record), _training(record), _losses(record)]
    return tuple(figure for figure in made if figure is not None)


def _heads(record: Treatment) -> Figure | None:
    """Chart the measure behind the first finding that the remedy is meant for: sorted heads, a line per arm."""
    answered = [outcome.any for outcome in record.outcomes if outcome.answered]
    finding = next((f for f in answered if f.details.get("measure") and f.heads), None)
    if finding is None:
        return None
    measure, stack, site = str(finding.details["measure"]), finding.stack, str(finding.details.get("site", "self"))
    rows: list[Point] = []
    for arm, survey in record.surveys.items():
        ordered = _sorted(survey, measure, stack, site)
        rows += [Point(number + 1, value, arm) for number, value in enumerate(ordered)]
    card = next((survey.cards[measure] for survey in record.surveys.values() if measure in survey.cards), None)
    if not rows or card is None:
        return None
    return Figure(
        name="heads",
        title=f"{card.title} of every head, largest first",
        caption="Each line is one arm, with its heads sorted by value.",
        x="heads",
        y=card.unit or card.title,
        rows=tuple(rows),
    )


def _sorted(survey: Survey, measure: str, stack: str, site: str) -> list[float]:
    if measure not in survey.cards or (stack, site) not in survey.places(measure):
        return []
    values = np.asarray(survey.values(measure, stack=stack, site=site), dtype=float).ravel()
    return sorted((float(value) for value in values if math.isfinite(value)), reverse=True)


def _training(record: Treatment) -> Figure | None:
    rows = [Point(step, value, name) for name, arm in record.arms.items() for step, value in _smooth(arm.curve)]
    if not rows:
        return None
    return Figure(
        name="training",
        title="Loss in training",
        caption="Both arms read the same batches in the same order. Means over neighbouring steps.",
        x="step",
        y="nats per token",
        rows=tuple(rows),
    )


def _smooth(curve: Sequence[float]) -> list[tuple[int, float]]:
    """Return means over groups of steps, each with the last step of its group."""
    size = max(1, min(SMOOTHED, len(curve) // 10))
    return [
        (start + len(part), sum(part) / len(part))
        for start in range(0, len(curve), size)
        if (part := curve[start : start + size])
    ]


def _losses(record: Treatment) -> Figure | None:
    """Return a chart of the differences of held-out loss, or None without a control."""
    if record.baseline != "control":
        return None
    rows = []
    for first, second in (("before", "control"), ("control", "treated"), ("before", "treated")):
        apart = record.loss_between(first, second)
        if math.isfinite(apart.low):
            rows.append(Point(f"{second} less {first}", apart.mean, "difference", low=apart.low, high=apart.high))
    if not rows:
        return None
    return Figure(
        name="loss",
        title="Held-out loss: differences",
        caption="Mean difference over held-out sequences with its 95% interval. Below 0 is better.",
        x="",
        y="nats per token",
        rows=tuple(rows),
        kind="bars",
    )


def _cost(record: Treatment) -> Figure | None:
    """Chart the rise of the held-out loss in the chosen order, as far as it is of interest, beside the budget."""
    pruning = record.pruning
    if pruning is None or not pruning.curve:
        return None
    taken = max((cost.rise for cost in pruning.curve if cost.removed <= pruning.removed), default=0.0)
    ceiling = NEAR * max(pruning.limit, taken)
    end = next((n + 1 for n, cost in enumerate(pruning.curve) if cost.rise > ceiling), len(pruning.curve))
    shown = pruning.curve[: max(2, end)]
    rows = [Point(cost.removed, cost.rise, "held-out loss", low=cost.low, high=cost.high) for cost in shown]
    if not math.isnan(pruning.budget):
        rows += [Point(cost.removed, pruning.budget, "budget") for cost in (shown[0], shown[-1])]
    return Figure(
        name="cost",
        title="What it costs to remove heads",
        caption=f"Rise of the held-out loss in the chosen order, with its 95% interval. {pruning.removed} go.",
        x="removed heads",
        y="nats per token",
        rows=tuple(rows),
    )


def _pruning(record: Treatment) -> Figure | None:
    assert record.pruning is not None
    rows = [
        Point(
            removed,
            order.losses[number],
            order.title,
            low=order.low[number] if order.low else math.nan,
            high=order.high[number] if order.high else math.nan,
        )
        for order in record.pruning.orders
        for number, removed in enumerate(record.pruning.counts)
        if math.isfinite(order.losses[number])
    ]
    if not rows:
        return None
    return Figure(
        name="pruning",
        title="Loss against removed heads",
        caption="Held-out loss when heads are removed in several orders. The band is from the best to the "
        "worst of several random orders.",
        x="removed heads",
        y="nats per token",
        rows=tuple(rows),
    )


def chart(record: Treatment, name: str | None = None, *, width: int = 1000) -> Any:
    """Draw the chart called `name` ("heads", "training", "loss", "cost" or "pruning"), by default the main one."""
    known = {figure.name: figure for figure in figures(record)}
    if not known:
        raise RefusalError("This treatment has no chart: read its sentences.")
    if name is not None and name not in known:
        raise RefusalError(f"This treatment has no chart '{name}'.{nearest(name, known)}")
    return draw(known[name or next(iter(known))], width=width, title=True)


def draw(figure: Figure, *, width: int, title: bool = False) -> Any:
    from attnscope.reports.experiment_figure import experiment_figure

    return experiment_figure(figure, title=title, width=width)
