"""A collapse in a terminal: the verdict and a sentence on every variant; tables on request."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.records.collapse import Collapse
from attnscope.records.published import published as published_curves
from attnscope.reporting.collapse.bound_words import (
    END_HEADING,
    SKIP_HEADING,
    bound_lines,
    end_lines,
    skip_lines,
    skip_words,
)
from attnscope.reporting.collapse.words import (
    corpus_words,
    published_remarks,
    published_words,
    remarks,
    sentences,
    shape_words,
    variant_sentences,
    verdict,
)
from attnscope.reporting.terminal import lines_under, opening

MOST_DEPTHS = 6


def show(found: Collapse, *, published: str | None = None, verbose: bool = False) -> RenderableType:
    """What a console prints; `published` as on the page, `verbose` adds the curves and bounds as tables."""
    told_of = sentences(found) if verbose else variant_sentences(found, short=True)
    parts: list[RenderableType] = [
        *opening(verdict(found), f"{found.model}, {shape_words(found)}", corpus_words(found), ""),
        *(Text(f"· {clean(sentence)}") for sentence in told_of),
        *(Text(clean(note), style="dim") for note in (found.notes if verbose else remarks(found))),
    ]
    if published is not None:
        theirs = published_curves(published, found.weights)
        parts.append(Text("\nBeside the published curves", style="bold"))
        parts += [Text(said) for said in published_words(found, theirs)]
        parts += [Text(said) for said in published_remarks(theirs) if verbose]
    return Group(*parts, *(_tables(found) if verbose else ()))


def _tables(found: Collapse) -> list[RenderableType]:
    heading, *lines = bound_lines(found) or [()]
    parts = [
        *_curves(found),
        *lines_under("One block of attention alone: measured, and bounds on it", heading, lines),
        *lines_under("With its skip: growth of the diameter, and bounds on it", SKIP_HEADING, skip_lines(found)),
    ]
    if said := skip_words(found):
        parts.append(Text(said))
    return [*parts, *lines_under("From the first block to the last", END_HEADING, end_lines(found))]


def _curves(found: Collapse) -> list[RenderableType]:
    """A few blocks, evenly spread and with the end, so that a line holds them."""
    depths = max(len(curve.mean) for curve in found.curves.values())
    step = max(1, -(-(depths - 1) // MOST_DEPTHS))
    shown = sorted({*range(0, depths, step), depths - 1})
    lines = [
        (curve.title, *(_short(curve.mean[depth]) if depth < len(curve.mean) else "–" for depth in shown))
        for curve in found.curves.values()
    ]
    heading = ("entering block", *("end" if depth == depths - 1 else str(depth) for depth in shown))
    return lines_under("Relative residual", heading, lines)


def _short(value: float) -> str:
    return numeral(float(f"{value:.2g}")) if math.isfinite(value) else "–"
