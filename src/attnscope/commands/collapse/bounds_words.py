"""Bounds of a collapse beside the truth, in words and tables. Only bounds that apply to the model are listed."""

from __future__ import annotations

import math
from typing import Literal

from attnscope.commands.collapse.record import Collapse, LayerBounds
from attnscope.core.words import count, numeral
from attnscope.reports.document import Figure, Section, Table, drawn_by

Bounded = Literal["diameter", "residual"]
BOUNDED: dict[Bounded, tuple[str, str]] = {
    "diameter": (
        "Largest distance of two tokens",
        "The diameter of what one block of attention alone writes: the largest distance of two of its tokens, and "
        "bounds on it from the patterns that were seen and from weights alone. Medians over sequences.",
    ),
    "residual": (
        "Residual, and the paper's theorem 2.2",
        "The residual of what one block of attention alone writes, beside what theorem 2.2 of arXiv:2103.03404 bounds "
        "it by, from weights and input. Medians over sequences.",
    ),
}
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


def bounds_section(found: Collapse) -> tuple[Section, ...]:
    """Return a section with bounds beside measured values, or nothing if nothing is bounded."""
    if not found.bounds:
        return ()
    heading, *lines = bound_lines(found)
    skip_note = (
        "Growth of the diameter when the skip is kept, between its two bounds. It is the diameter after attention and "
        "its skip over the diameter before: 1 means that nothing changed, 0 that all tokens became one. A lower bound "
        "of 0 or less promises nothing."
    )
    single_note = (
        "Medians over sequences. Numbers as small as rounding errors can come out larger than their bound: that is "
        "rounding, and not a mistake in the bound."
    )
    tables = (
        Table(
            heading,
            tuple(lines),
            "One block of attention alone",
            single_note,
            align="".join("l" if word in ("block", "note") else "r" for word in heading),
        ),
        Table(SKIP_HEADING, tuple(skip_lines(found)), "With a skip", skip_note),
        Table(
            END_HEADING, tuple(end_lines(found)), "From the first block to the last", "Largest over sequences.", "llrr"
        ),
    )
    figures = tuple(
        Figure(
            f"bounds-{of}",
            BOUNDED[of][0],
            drawn_by("attnscope.commands.collapse.chart:bounds_chart", found, of),
            caption=BOUNDED[of][1],
        )
        for of in bounded(found)
    )
    said = skip_words(found)
    shown = tuple(table for table in tables if table.rows)
    return (
        Section(
            "What mathematics promises beside what was measured",
            sentences=(said,) if said else (),
            figures=figures,
            tables=shown,
            link="Bounds",
            detail=True,
        ),
    )


def bounded(found: Collapse) -> tuple[Bounded, ...]:
    """Return the quantities that have bounds of single blocks to draw."""
    if not found.bounds:
        return ()
    return ("diameter", "residual") if any(row.paper is not None for row in found.bounds) else ("diameter",)


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
    """Say what skips guarantee, if anything."""
    safe = sum(row.strength < 1 for row in found.skip_bounds)
    if not safe:
        return ""
    return (
        f"With its skip and the patterns seen here, attention cannot collapse the stream in {safe} of "
        f"{count(len(found.skip_bounds), 'block')}."
    )


def power_of_ten(exponent: float) -> str:
    """Return `4.2e-5` for a readable number, else `10^152`. The logarithm of zero is minus infinity."""
    if not math.isfinite(exponent):
        return "infinite" if exponent > 0 else "0"
    return numeral(10.0**exponent) if abs(exponent) < 7 else f"10^{exponent:,.0f}"


def _title(found: Collapse, variant: str) -> str:
    curve = found.curves.get(variant)
    return variant if curve is None else curve.title


def _figure(value: float | None) -> str:
    return "–" if value is None else numeral(value)
