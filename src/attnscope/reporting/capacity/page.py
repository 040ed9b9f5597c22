"""The page of a capacity: the answer, its curves, what each construction needs, and what is proved; one file."""

from __future__ import annotations

from attnscope.charts.capacity_curves import capacity_curves
from attnscope.core.numerals import numeral
from attnscope.records.capacity import Capacity
from attnscope.reporting.capacity.words import (
    accuracy_words,
    curve_tables,
    need_lines,
    seed_words,
    sentences,
    verdict,
)
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn_to_fit


def render(found: Capacity) -> str:
    """The page as text; a capacity without curves, or with nothing measured along them, has no chart."""
    told = sentences(found)
    figures = []
    if any(need.d is not None for need in (*found.against_n, *found.against_k)):
        figures.append(
            drawn_to_fit(
                lambda width: capacity_curves(found, width=width),
                "capacity",
                title="Width against tokens and against keys of a row",
                caption="Smallest widths found on unions of k random permutations, median over "
                f"{seed_words(found)}; bounds dashed. Both axes are logarithmic.",
            )
        )
    return page(
        "capacity.html",
        verdict=verdict(found),
        figures=figures,
        data=found,
        accuracy=accuracy_words(found),
        sentences=told[1:],
        drawings=figures,
        needs=need_lines(found),
        bounds=sorted(found.bounds.bounds, key=lambda bound: -bound.width),
        logit_floor=numeral(found.bounds.logit_floor),
        curves=curve_tables(found),
        provenance=rows(
            {
                "patterns": found.pattern.replace("_", " "),
                "seeds": found.seeds,
                "seconds": found.seconds,
                "interrupted": found.interrupted,
                "attnscope": found.attnscope,
            }
        ),
    )
