"""A compiled head in a terminal: its certificate."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.compiled import Compiled
from attnscope.reporting.compiled.words import TOO_LARGE, certificate_lines, title_words


def show(compiled: Compiled) -> RenderableType:
    """What a console prints; a head that misses the accuracy is said to be failing."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    for label, value, note in certificate_lines(compiled):
        table.add_row(label, Text(clean(value)), Text(clean(note), style="red" if note.startswith(TOO_LARGE) else ""))
    verdict = Text(compiled.verdict, style="bold green" if compiled.reached else "bold red")
    title = Text.assemble("\n", (clean(title_words(compiled)), "bold"), "  ", verdict, "\n")
    failing = [] if compiled.reached else [Text("\nThe head is marked as failing: it misses the accuracy.")]
    return Group(title, table, *failing)
