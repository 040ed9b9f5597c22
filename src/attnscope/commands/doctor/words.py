"""A checkup in a terminal: a table of what was looked at, and a last line that says whether all is well."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.doctor.record import Checkup, State
from attnscope.core.words import clean

_MARKS: Mapping[State, tuple[str, str]] = {"well": ("✓", "green"), "missing": ("–", "dim"), "ill": ("✗", "bold red")}


def show_checkup(found: Checkup) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for group, checks in found.groups.items():
        table.add_row("", Text(group, style="dim"), "")
        for check in checks:
            mark, style = _MARKS[check.state]
            words = f"{check.found}: {check.advice}" if check.advice else check.found
            table.add_row(Text(mark, style=style), Text(clean(check.name)), Text(clean(words), style=_of(check.state)))
    last = Text("\n".join(map(clean, found.sentences())), style="green" if found.well else "bold red")
    return Group(table, Text(""), last)


def _of(state: State) -> str:
    return "dim" if state == "missing" else ""
