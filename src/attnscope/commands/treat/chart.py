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


def figures(found: Treatment) -> tuple[Figure, ...]:
    """Return the charts that a treatment has, the main one first."""
    made = [_pruning(found), _heads(found), _training(found), _losses(found)]
    return tuple(figure for figure in made if figure is not None)


def _heads(found: Treatment) -> Figure | None:
    """Return the measure behind the first finding that the remedy answers: heads in order, a line for each arm."""
    answered = [outcome.any for outcome in found.outcomes if outcome.answered]
    finding = next((one for one in answered if one.details.get("measure") and one.heads), None)
    if finding is None:
        return None
    measure, stack, site = str(finding.details["measure"]), finding.stack, str(finding.details.get("site", "self"))
    rows: list[Point] = []
    for arm, survey in found.surveys.items():
        ordered = _sorted(survey, measure, stack, site)
        rows += [Point(number + 1, value, arm) for number, value in enumerate(ordered)]
    card = next((survey.cards[measure] for survey in found.surveys.values() if measure in survey.cards), None)
    if not rows or card is None:
        return None
    return Figure(
        name="heads",
        title=f"{card.title} of every head, largest first",
        caption="Each line is one arm, with its heads in order of their own value.",
        x="heads",
        y=card.unit or card.title,
        rows=tuple(rows),
    )


def _sorted(survey: Survey, measure: str, stack: str, site: str) -> list[float]:
    if measure not in survey.cards or (stack, site) not in survey.places(measure):
        return []
    values = np.asarray(survey.values(measure, stack=stack, site=site), dtype=float).ravel()
    return sorted((float(value) for value in values if math.isfinite(value)), reverse=True)


def _training(found: Treatment) -> Figure | None:
    rows = [Point(step, value, name) for name, arm in found.arms.items() for step, value in _smooth(arm.curve)]
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
    """Return means over groups of steps, at the last step of each."""
    size = max(1, min(SMOOTHED, len(curve) // 10))
    return [
        (start + len(part), sum(part) / len(part))
        for start in range(0, len(curve), size)
        if (part := curve[start : start + size])
    ]


def _losses(found: Treatment) -> Figure | None:
    """Return differences of held-out loss with their intervals; without a control, a table is enough."""
    if found.baseline != "control":
        return None
    rows = []
    for first, second in (("before", "control"), ("control", "treated"), ("before", "treated")):
        apart = found.loss_between(first, second)
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


def _pruning(found: Treatment) -> Figure | None:
    if found.pruning is None:
        return None
    rows = [
        Point(
            removed,
            order.losses[place],
            order.title,
            low=order.low[place] if order.low else math.nan,
            high=order.high[place] if order.high else math.nan,
        )
        for order in found.pruning.orders
        for place, removed in enumerate(found.pruning.counts)
        if math.isfinite(order.losses[place])
    ]
    if not rows:
        return None
    return Figure(
        name="pruning",
        title="Loss against heads taken out",
        caption="Held-out loss when heads are taken out, the least valuable first. The band runs from the best to the "
        "worst of several random orders.",
        x="heads taken out",
        y="nats per token",
        rows=tuple(rows),
    )


def chart(found: Treatment, name: str | None = None, *, width: int = 1000) -> Any:
    """Draw heads, training, loss or pruning, by default the first that the treatment has."""
    known = {figure.name: figure for figure in figures(found)}
    if not known:
        raise RefusalError("This treatment has nothing to draw: read its sentences.")
    if name is not None and name not in known:
        raise RefusalError(f"This treatment has no chart '{name}'.{nearest(name, known)}")
    return draw(known[name or next(iter(known))], width=width, title=True)


def draw(figure: Figure, *, width: int, title: bool = False) -> Any:
    from attnscope.reports.experiment_figure import experiment_figure

    return experiment_figure(figure, title=title, width=width)
