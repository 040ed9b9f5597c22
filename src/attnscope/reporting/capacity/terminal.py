"""A capacity in a terminal: the answer in sentences; with `verbose` also what is proved and what was measured."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.capacity import Capacity
from attnscope.reporting.capacity.words import (
    accuracy_words,
    bound_lines,
    need_lines,
    sentences,
    title_words,
    verdict,
)
from attnscope.reporting.terminal import opening


def show(found: Capacity, *, verbose: bool = False) -> RenderableType:
    """What a console prints."""
    parts = opening(verdict(found), f"{title_words(found)}; {accuracy_words(found)}")
    parts += [Text(""), *(Text(clean(sentence)) for sentence in sentences(found)[1:])]
    tables = (("What is proved", bound_lines(found)), ("What was measured", need_lines(found))) if verbose else ()
    for heading, lines in tables:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column(style="dim")
        for line in lines:
            table.add_row(*(Text(clean(word)) for word in line))
        parts += [Text.assemble("\n", (heading, "bold")), table]
    return Group(*parts)
