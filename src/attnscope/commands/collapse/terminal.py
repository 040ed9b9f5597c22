"""A collapse in a terminal: the verdict and a sentence on every variant; tables on request."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.commands.collapse.record import Collapse, LayerBounds
from attnscope.commands.collapse.record import published as published_curves
from attnscope.commands.collapse.words import (
    corpus_words,
    published_remarks,
    published_words,
    remarks,
    sentences,
    shape_words,
    variant_sentences,
    verdict,
)
from attnscope.core.words import clean, count, numeral
from attnscope.reports.terminal import lines_under, opening

# Bounds of a collapse beside the truth, in words and tables. Only bounds that hold of this model are spoken of.

HEADING = (
    "block",
    "diameter",
    "bound from the patterns seen",
    "bound from weights alone",
    "residual",
    "the paper's theorem 2.2",
    "note",
)
END_HEADING = ("bound", "of", "measured", "at most")
END_TITLES = {
    "contraction": "from the patterns seen",
    "cubic": "from weights alone",
    "theorem 2.3": "the paper's theorem 2.3",
    "corollary 3.2": "the paper's corollary 3.2",
}
SKIP_HEADING = ("block", "at least", "measured", "at most")
MOST_SPREAD = 1.256  # what theorem 2.2 asks of the logits


def bound_lines(found: Collapse) -> list[tuple[str, ...]]:
    """Truth and bounds of every block of attention alone, under a heading; columns that are empty are left out."""
    if not found.bounds:
        return []
    lines: list[tuple[str, ...]] = [HEADING]
    for row in found.bounds:
        lines.append(
            (
                str(row.layer),
                numeral(row.after),
                numeral(row.contraction),
                _figure(row.cubic),
                numeral(row.residual_after),
                _figure(row.paper),
                "; ".join(_notes(row)),
            )
        )
    told = [place for place, cells in enumerate(zip(*lines, strict=True)) if {*cells[1:]} - {"–", ""}]
    return [tuple(line[place] for place in told) for line in lines]


def _notes(row: LayerBounds) -> list[str]:
    notes = []
    if row.spread is not None and row.condition_met is not None and row.condition_met < row.sequences:
        notes.append(
            f"theorem 2.2 is no bound here: it asks for logits that spread by {MOST_SPREAD} at most, and these spread "
            f"by {numeral(row.spread)}"
        )
    if row.after <= 16 * row.rounding:
        notes.append("what is measured is rounding")
    if row.violations:
        notes.append(f"{count(row.violations, 'bound').upper()} VIOLATED")
    return notes


def end_lines(found: Collapse) -> list[tuple[str, ...]]:
    """Bounds over all blocks that apply: which, of which variant and quantity, truth, bound."""
    return [
        (
            END_TITLES[end.name],
            f"{end.of} of {_title(found, end.variant)}",
            power_of_ten(end.truth[-1]),
            power_of_ten(end.bound[-1]),
        )
        for end in found.ends
        if end.applies
    ]


def skip_lines(found: Collapse) -> list[tuple[str, ...]]:
    """Growth of the diameter in every block with its skip, between its two bounds."""
    return [
        (str(row.layer), numeral(1 - row.strength), numeral(row.growth), numeral(1 + row.strength))
        for row in found.skip_bounds
    ]


def skip_words(found: Collapse) -> str:
    """What skips guarantee; nothing where they guarantee nothing."""
    safe = sum(row.strength < 1 for row in found.skip_bounds)
    if not safe:
        return ""
    return (
        f"With its skip and the patterns seen here, attention cannot collapse the stream in {safe} of "
        f"{count(len(found.skip_bounds), 'block')}."
    )


def power_of_ten(exponent: float) -> str:
    """`4.2e-5` where a number can be read, `10^152` where it cannot; the logarithm of zero is minus infinite."""
    if not math.isfinite(exponent):
        return "infinite" if exponent > 0 else "0"
    return numeral(10.0**exponent) if abs(exponent) < 7 else f"10^{exponent:,.0f}"


def _title(found: Collapse, variant: str) -> str:
    curve = found.curves.get(variant)
    return variant if curve is None else curve.title


def _figure(value: float | None) -> str:
    return "–" if value is None else numeral(value)


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
