"""The page of a treatment: what the remedy did, beside the same training without it; one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.treat.outcomes import Outcome
from attnscope.commands.treat.record import Treatment
from attnscope.commands.treat.words import (
    cost_words,
    how_many,
    interval_words,
    settings_words,
    title_of,
    verdict,
    why_words,
)
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import Figure, Point
from attnscope.core.words import numeral
from attnscope.reports.document import rows
from attnscope.reports.experiment_figure import experiment_figure
from attnscope.reports.export import Drawn, drawn_to_fit
from attnscope.reports.page import page

# The pictures of a treatment as plain data: what became of heads, of the loss in training, and of pruned models.

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


# The picture of a treatment: what the remedy was meant to change, or whichever is asked for.


def chart(found: Treatment, name: str | None = None, *, width: int = 1000) -> Any:
    """`name` is heads, training, loss or pruning, where the treatment has it; without it the most telling one."""
    there = {one.name: one for one in figures(found)}
    if not there:
        raise RefusalError("This treatment has nothing to draw: look at its sentences.")
    if name is not None and name not in there:
        raise RefusalError(f"This treatment has no chart '{name}'.{nearest(name, there)}")
    return experiment_figure(there[name or next(iter(there))], width=width)


LOOKS = {"helped": "calm", "harmed": "warning", "no effect": "note", "changed": "note", "unknown": "note"}


def render(found: Treatment) -> str:
    """The page as text. Equal records give equal pages."""
    drawn = [_drawn(figure) for figure in figures(found)]
    return page(
        "treatment.html",
        verdict=verdict(found),
        figures=drawn,
        styles=("comparison.css",),
        data=found,
        arms=tuple(found.arms),
        where=settings_words(found),
        why=why_words(found),
        cost=cost_words(found),
        groups=[(heading, some) for heading, some in _grouped(found) if some],
        drawings=drawn,
        losses=[(name, numeral(arm.loss, 4)) for name, arm in found.arms.items()],
        differences=_differences(found),
        provenance=[*rows(found.provenance), *(("note", note) for note in found.notes)],
    )


def _drawn(figure: Figure) -> Drawn:
    return drawn_to_fit(
        lambda width: experiment_figure(figure, title=False, width=width),
        figure.name,
        title=figure.title,
        caption=figure.caption,
    )


def _grouped(found: Treatment) -> list[tuple[str, list[dict[str, object]]]]:
    """What moved first; what did not is folded away."""
    told = [_outcome(one, found) for one in found.outcomes]
    return [
        ("What changed", [one for one in told if one["judgement"] != "no effect"]),
        ("No effect", [one for one in told if one["judgement"] == "no effect"]),
    ]


def _outcome(one: Outcome, found: Treatment) -> dict[str, object]:
    counts = [(arm, getattr(one, arm)) for arm in found.arms]
    return {
        "title": title_of(one),
        "judgement": one.judgement,
        "look": LOOKS[one.judgement],
        "answered": one.answered,
        "cells": [
            {
                "arm": arm,
                "count": how_many(f),
                "sentence": "" if f is None else f.sentence,
            }
            for arm, f in counts
        ],
    }


def _differences(found: Treatment) -> list[tuple[str, str]]:
    told = [(f"treated less {found.baseline}", interval_words(found.loss))]
    if found.baseline == "control":
        told.append(("control less before", interval_words(found.loss_between("before", "control"))))
        told.append(("treated less before", interval_words(found.loss_between("before", "treated"))))
    return told
