"""A collapse in a terminal: sentences, the curves as numbers, bounds beside the truth."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.records.collapse import Collapse
from attnscope.records.published import published as published_curves
from attnscope.reporting.collapse.words import (
    bound_lines,
    corpus_words,
    end_lines,
    published_words,
    sentences,
    shape_words,
)
from attnscope.reporting.terminal import lines_under, titled

MOST_DEPTHS = 6


def show(found: Collapse, *, published: str | None = None, verbose: bool = False) -> RenderableType:  # noqa: ARG001
    """What a console prints; `published` as on the page."""
    parts: list[RenderableType] = [
        titled(found.model, shape_words(found)),
        Text(clean(corpus_words(found)) + "\n", style="dim"),
        *(Text(clean(sentence)) for sentence in sentences(found)),
        *(Text(clean(note), style="dim") for note in found.notes),
        *_curves(found),
    ]
    heading, *lines = bound_lines(found) or [()]
    parts += lines_under("One layer of attention alone", heading, lines)
    parts += lines_under("From the first layer to the last", ("bound", "of", "truth", "bound", ""), end_lines(found))
    if published is not None:
        parts.append(Text("\nBeside the published curves", style="bold"))
        parts += [Text(said) for said in published_words(found, published_curves(published, found.weights))]
    return Group(*parts)


def _curves(found: Collapse) -> list[RenderableType]:
    """At most nine depths, evenly spread and with the last, so that a line holds them."""
    depths = max(len(curve.mean) for curve in found.curves.values())
    step = max(1, -(-(depths - 1) // MOST_DEPTHS))
    shown = sorted({*range(0, depths, step), depths - 1})
    lines = [(curve.title, *(_short(curve.mean[depth]) for depth in shown)) for curve in found.curves.values()]
    return lines_under("Relative residual", ("depth", *map(str, shown)), lines)


def _short(value: float) -> str:
    return numeral(float(f"{value:.2g}")) if math.isfinite(value) else "–"
