"""The pictures of a treatment as plain data: what became of heads, of the loss in training, and of pruned models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attnscope.core.experiment import Figure, Point
from attnscope.records.survey.survey import Survey
from attnscope.records.treatment import Treatment

NAMES = {"before": "before", "control": "control", "treated": "treated"}
SMOOTHED = 20  # steps behind one point of a training curve, at most a tenth of them


def figures(found: Treatment) -> tuple[Figure, ...]:
    """All that can be drawn, the most telling first."""
    made = [_pruning(found), _heads(found), _training(found), _losses(found)]
    return tuple(one for one in made if one is not None)


def _heads(found: Treatment) -> Figure | None:
    """The measure behind the findings that the remedy answers: every head in order of it, one line for each arm."""
    answered = [one for one in found.outcomes if one.answered and one.any.details.get("measure") and one.any.heads]
    if not answered:
        return None
    finding = answered[0].any
    measure, stack, site = str(finding.details["measure"]), finding.stack, str(finding.details.get("site", "self"))
    rows: list[Point] = []
    for arm, survey in found.surveys.items():
        ordered = _sorted(survey, measure, stack, site)
        rows += [Point(number + 1, value, NAMES[arm]) for number, value in enumerate(ordered)]
    card = next((survey.cards[measure] for survey in found.surveys.values() if measure in survey.cards), None)
    if not rows or card is None:
        return None
    return Figure(
        name="heads",
        title=f"{card.title} of every head, largest first",
        caption="Each line is one arm: its heads in order of their own value, so that a lower line means less of it.",
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
    rows = [Point(step, value, NAMES[name]) for name, arm in found.arms.items() for step, value in _smooth(arm.curve)]
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
    """Means over blocks of steps, at the last step of each."""
    size = max(1, min(SMOOTHED, len(curve) // 10))
    return [
        (start + len(part), sum(part) / len(part))
        for start in range(0, len(curve), size)
        if (part := curve[start : start + size])
    ]


def _losses(found: Treatment) -> Figure | None:
    """Differences of held-out loss with their intervals."""
    if found.baseline != "control":
        return None  # one number, which the table says
    rows = []
    for one, other in (("before", "control"), ("control", "treated"), ("before", "treated")):
        told = found.loss_between(one, other)
        if math.isfinite(told.low):
            rows.append(
                Point(f"{NAMES[other]} less {NAMES[one]}", told.mean, "difference", low=told.low, high=told.high)
            )
    if not rows:
        return None
    return Figure(
        name="loss",
        title="Held-out loss: differences",
        caption="Mean over held-out sequences, each compared with itself, with its 95% interval. Below 0 is better.",
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
        caption="Held-out loss when heads are taken out, the one of least worth first. The band runs from the best to "
        "the worst of several random orders.",
        x="heads taken out",
        y="nats per token",
        rows=tuple(rows),
    )
