"""Bounds of a collapse beside the measured values, in words and tables. Bounds that do not apply are not listed."""

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
        "The diameter (largest distance of two tokens) of what one block of attention alone writes, and its bounds "
        "from the observed patterns and from weights alone. Medians over sequences.",
    ),
    "residual": (
        "Residual, and the paper's theorem 2.2",
        "The residual of what one block of attention alone writes, and its bound by theorem 2.2 of arXiv:2103.03404 "
        "from weights and input. Medians over sequences.",
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
MOST_SPREAD = 1.256  # theorem 2.2 requires that logits spread by at most this


def bounds_section(record: Collapse) -> tuple[Section, ...]:
    """Return a section with bounds beside measured values, or nothing if nothing is bounded."""
    if not record.bounds:
        return ()
    heading, *lines = bound_lines(record)
    skip_note = (
        "Growth of the diameter when the skip is kept, between its two bounds. Growth is the diameter after attention "
        "and its skip, divided by the diameter before: 1 means no change, 0 means that all tokens became equal. A "
        "lower bound of 0 or less says nothing."
    )
    single_note = (
        "Medians over sequences. Numbers as small as rounding errors can exceed their bound: that is rounding, and "
        "not a mistake in the bound."
    )
    tables = (
        Table(
            heading,
            tuple(lines),
            "One block of attention alone",
            single_note,
            align="".join("l" if word in ("block", "note") else "r" for word in heading),
        ),
        Table(SKIP_HEADING, tuple(skip_lines(record)), "With a skip", skip_note),
        Table(
            END_HEADING, tuple(end_lines(record)), "From the first block to the last", "Largest over sequences.", "llrr"
        ),
    )
    figures = tuple(
        Figure(
            f"bounds-{of}",
            BOUNDED[of][0],
            drawn_by("attnscope.commands.collapse.chart:bounds_chart", record, of),
            caption=BOUNDED[of][1],
        )
        for of in bounded(record)
    )
    sentence = skip_words(record)
    filled = tuple(table for table in tables if table.rows)
    return (
        Section(
            "Bounds beside measured values",
            sentences=(sentence,) if sentence else (),
            figures=figures,
            tables=filled,
            link="Bounds",
            detail=True,
        ),
    )


def bounded(record: Collapse) -> tuple[Bounded, ...]:
    """Return the quantities for which bounds of single blocks can be drawn."""
    if not record.bounds:
        return ()
    return ("diameter", "residual") if any(row.paper is not None for row in record.bounds) else ("diameter",)


def bound_lines(record: Collapse) -> list[tuple[str, ...]]:
    """Return a heading, then measured values and bounds of each block of attention alone. Leave out empty columns."""
    if not record.bounds:
        return []
    lines: list[tuple[str, ...]] = [HEADING]
    for row in record.bounds:
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
    filled = [column for column, cells in enumerate(zip(*lines, strict=True)) if {*cells[1:]} - {"–", ""}]
    return [tuple(line[column] for column in filled) for line in lines]


def _notes(row: LayerBounds) -> list[str]:
    notes = []
    if row.spread is not None and row.condition_met is not None and row.condition_met < row.sequences:
        notes.append(
            f"theorem 2.2 does not apply: it needs logits that spread by {MOST_SPREAD} at most, and these spread by "
            f"{numeral(row.spread)}"
        )
    if row.after <= 16 * row.rounding:
        notes.append("the measured value is rounding")
    if row.violations:
        notes.append(f"{count(row.violations, 'bound').upper()} VIOLATED")
    return notes


def end_lines(record: Collapse) -> list[tuple[str, ...]]:
    """Return the bounds over all blocks, if they apply: name, quantity and variant, measured value, bound."""
    return [
        (
            END_TITLES[end.name],
            f"{end.of} of {_title(record, end.variant)}",
            power_of_ten(end.truth[-1]),
            power_of_ten(end.bound[-1]),
        )
        for end in record.ends
        if end.applies
    ]


def skip_lines(record: Collapse) -> list[tuple[str, ...]]:
    """Return the growth of the diameter in every block with its skip, between its two bounds."""
    return [
        (str(row.layer), numeral(1 - row.strength), numeral(row.growth), numeral(1 + row.strength))
        for row in record.skip_bounds
    ]


def skip_words(record: Collapse) -> str:
    """Say what skips guarantee, if anything."""
    safe = sum(row.strength < 1 for row in record.skip_bounds)
    if not safe:
        return ""
    return (
        f"With its skip and the patterns seen here, attention cannot collapse the stream in {safe} of "
        f"{count(len(record.skip_bounds), 'block')}."
    )


def power_of_ten(exponent: float) -> str:
    """Return `4.2e-5` for a readable number, else `10^152`. The logarithm of zero is minus infinity."""
    if not math.isfinite(exponent):
        return "infinite" if exponent > 0 else "0"
    return numeral(10.0**exponent) if abs(exponent) < 7 else f"10^{exponent:,.0f}"


def _title(record: Collapse, variant: str) -> str:
    curve = record.curves.get(variant)
    return variant if curve is None else curve.title


def _figure(value: float | None) -> str:
    return "–" if value is None else numeral(value)
