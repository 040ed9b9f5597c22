"""A capacity in a terminal, as two tables: what is proved, and what was measured."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.capacity import Capacity
from attnscope.reporting.capacity.words import accuracy_words, answer_words, bound_lines, need_lines, title_words
from attnscope.reporting.terminal import titled


def show(found: Capacity) -> RenderableType:
    """What a console prints."""
    parts: list[RenderableType] = [
        titled(title_words(found), accuracy_words(found)),
        Text("\n" + answer_words(found)),
    ]
    for heading, lines in (("Bounds", bound_lines(found)), ("Constructions", need_lines(found))):
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column(style="dim")
        for line in lines:
            table.add_row(*(Text(clean(word)) for word in line))
        parts += [Text.assemble("\n", (heading, "bold")), table]
    return Group(*parts)
