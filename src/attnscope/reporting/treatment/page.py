"""The page of a treatment: what the remedy did, beside the same training without it; one file."""

from __future__ import annotations

from attnscope.charts.experiment_figure import experiment_figure
from attnscope.core.experiment import Figure
from attnscope.core.numerals import numeral
from attnscope.records.outcomes import Outcome
from attnscope.records.treatment import Treatment
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import Drawn, drawn_to_fit
from attnscope.reporting.treatment.figures import figures
from attnscope.reporting.treatment.words import (
    cost_words,
    how_many,
    interval_words,
    settings_words,
    title_of,
    verdict,
    why_words,
)

LOOKS = {"helped": "calm", "harmed": "warning", "no effect": "info", "changed": "info", "unknown": "info"}


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
