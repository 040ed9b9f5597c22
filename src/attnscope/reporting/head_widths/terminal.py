"""The widths of a model's heads in a terminal: sentences, and the heads that need most; all with `verbose`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.head_widths import HeadWidths
from attnscope.reporting.head_widths.words import accuracy_words, head_lines, sentences, title_words, verdict
from attnscope.reporting.terminal import opening

SHOWN = 8


def show(found: HeadWidths, *, verbose: bool = False) -> RenderableType:
    """What a console prints."""
    parts = opening(verdict(found), f"{title_words(found)}; {accuracy_words(found)}")
    parts += [Text(""), *(Text(clean(sentence)) for sentence in sentences(found)[1:])]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim")
    lines = head_lines(found)
    for line in lines if verbose else lines[:SHOWN]:
        table.add_row(*(Text(clean(word)) for word in line))
    return Group(*parts, Text(""), table)
