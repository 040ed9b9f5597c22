"""An operator's map in a terminal: sentences, and what is most to the last row."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.operator_map import OperatorMap
from attnscope.reporting.operator_map.words import last_row, lines, sentences, verdict
from attnscope.reporting.terminal import opening, section


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
