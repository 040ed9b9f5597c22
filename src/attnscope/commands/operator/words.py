"""An operator's map in sentences."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.operator.record import OperatorMap
from attnscope.commands.paths.chart_rows import signed, visible
from attnscope.core.words import clean, count, numeral
from attnscope.reports.terminal import opening, section
from attnscope.reports.words import Verdict

TOP = 10


def verdict(found: OperatorMap) -> Verdict:
    """Which token is most to most rows."""
    best = [_largest(row) for row in found.values]
    known = [place for place in best if place is not None]
    if not known:
        return Verdict("warning", "No number of this map is finite.")
    place = max(sorted(set(known)), key=known.count)
    itself = sum(place == row for row, place in enumerate(best)) if len(found.rows) == len(found.tokens) else 0
    most = f"'{visible(found.tokens[place])}' (token {place}) is most to {known.count(place)} of {_rows(found)}"
    own = f"; {count(itself, 'token')} most to itself" if itself == 1 else f"; {itself} tokens are most to themselves"
    return Verdict("note", f"By {found.map}, {most}{own if itself else ''}.")


def sentences(found: OperatorMap) -> tuple[str, ...]:
    said = [verdict(found).sentence, f"The map says {found.title}, in {found.part} of {found.model}."]
    if found.errors is None:
        said.append(f"It is exact, and took {_passes(found)} through the frozen model.")
    else:
        said.append(
            f"It is an estimate from {found.probes} random probes for each token ({_passes(found)} through the "
            f"frozen model); the standard error is {_relative_error(found)} of a number in the middle."
        )
    if found.constants is not None and found.totals is not None:
        shares = [c / t for c, t in zip(found.constants, found.totals, strict=True) if t and math.isfinite(c / t)]
        if shares:
            middle = sorted(shares)[len(shares) // 2]
            said.append(
                f"Tokens and constants add up to the norm of each row; constants (biases and shifts of norms) are "
                f"{numeral(round(middle, 3), 3)} of it in the middle."
            )
    return (*said, *found.notes)


def lines(found: OperatorMap, row: int = -1) -> list[tuple[str, str, str]]:
    """The tokens that are most to one row: place, word, number."""
    return [(str(place), visible(word), signed(number)) for place, word, number in found.top(row, TOP)]


def last_row(found: OperatorMap) -> str:
    name = found.rows[-1]
    number = len(found.rows) - 1
    return f"row {number}" if name == str(number) else f"row {number}, '{visible(name)}'"


def _rows(found: OperatorMap) -> str:
    return count(len(found.rows), "row")


def _passes(found: OperatorMap) -> str:
    return "one pass" if found.products == 1 else f"{found.products:,} passes"


def _largest(row: tuple[float, ...]) -> int | None:
    known = [place for place, number in enumerate(row) if math.isfinite(number)]
    return max(known, key=lambda place: row[place]) if known else None


def _relative_error(found: OperatorMap) -> str:
    assert found.errors is not None
    pairs = zip(sum(found.values, ()), sum(found.errors, ()), strict=True)
    shares = sorted(e / abs(v) for v, e in pairs if v and math.isfinite(v) and math.isfinite(e))
    return f"{100 * shares[len(shares) // 2]:.2g}%" if shares else "unknown"


# An operator's map in a terminal: sentences, and what is most to the last row.


def show(found: OperatorMap, *, verbose: bool = False) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    rows = range(len(found.rows)) if verbose else (len(found.rows) - 1,)
    for row in rows:
        for number, line in enumerate(lines(found, row)):
            table.add_row(*(Text(clean(cell), style="bold" if number == 0 else "") for cell in line))
    return Group(
        *opening(verdict(found), f"{found.model}, {found.class_name}, {found.dtype}"),
        Text(""),
        *(Text(clean(sentence)) for sentence in sentences(found)[1:]),
        section("What is most to every row, in order" if verbose else f"What is most to {last_row(found)}"),
        table,
    )
