"""The record of `attnscope doctor`: the result of every check, and its terminal table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.errors import INSTALL
from attnscope.core.words import clean

State = Literal["well", "missing", "ill"]


@dataclass(frozen=True)
class Check:
    """The result of one check.

    `missing` means that an optional extra is not installed, or that a check needs one; `ill` means broken.
    """

    group: str
    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Checkup:
    checks: tuple[Check, ...]

    @property
    def well(self) -> bool:
        return all(check.state != "ill" for check in self.checks)

    @property
    def groups(self) -> dict[str, tuple[Check, ...]]:
        """The checks by group, in order."""
        names = dict.fromkeys(check.group for check in self.checks)
        return {name: tuple(check for check in self.checks if check.group == name) for name in names}

    def sentences(self) -> tuple[str, ...]:
        """Return sentences on what is wrong and what to do, or one that says that nothing is wrong."""
        wrong = tuple(f"{c.name}: {c.found}. {c.advice}".strip() for c in self.checks if c.state == "ill")
        if not wrong and any(check.group == "scan" and check.state == "missing" for check in self.checks):
            return (f"Records can be read, drawn, compared and exported here. To run models: {INSTALL}",)
        return wrong or ("Everything that attnscope needs works here.",)

    def to_json(self) -> dict[str, Any]:
        return {"well": self.well, "checks": [asdict(check) for check in self.checks]}


# The terminal table of a checkup, with a last line that says whether all is well.

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
