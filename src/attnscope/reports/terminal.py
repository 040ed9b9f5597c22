"""What every terminal screen shares: clean text, titles, tables, and where the files are. 80 columns, colour optional.

Everything is built from `Text`, never from markup: a model called `[red]x` is called just that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnscope.core.words import clean

if TYPE_CHECKING:  # lists are printed from here too, and need no records
    from attnscope.reports.record import Record
    from attnscope.reports.words import Verdict

LEVELS: dict[str, str] = {"calm": "bold green", "note": "bold", "warning": "bold yellow", "critical": "bold red"}
OUTCOMES = {"reproduced": "green", "not reproduced": "yellow", "contradicted": "red", "not run": "dim"}  # of claims
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = str.maketrans(BLOCKS + "→×·–−�", "_.-=+*%#>x---?")


def print_record(
    record: Record,
    *,
    files: Mapping[str, Path | None] | None = None,
    console: Console | None = None,
    verbose: bool = False,
    **options: Any,
) -> None:
    """Print what the command's `show` gives for a record (with `verbose`, its tables too), then where its files are."""
    from attnscope.reports.record import ask

    shown = ask(record, "show", verbose=verbose, **options)
    print_screen(shown, files or {}, console or Console(highlight=False))


def print_screen(what: RenderableType, files: Mapping[str, Path | None], console: Console) -> None:
    """A terminal that knows only ASCII gets the same picture in ASCII, not an error."""
    written = {label: path for label, path in files.items() if path is not None}
    with console.capture() as captured:
        console.print(what)
        for place, (label, path) in enumerate(written.items()):
            # A path is there to be copied: it is never broken, whatever the width.
            line = Text.assemble("" if place else "\n", (f"{label:<8}", "dim"), clean(str(path)))
            console.print(line, soft_wrap=True)
        console.print()
    text = captured.get()
    if console.options.ascii_only:
        text = text.translate(ASCII).encode("ascii", "replace").decode()
    console.file.write(text)


def opening(verdict: Verdict, *about: str) -> list[RenderableType]:
    """What a screen begins with: the verdict, and under it what it is about."""
    return [
        Text(""),
        Text(clean(verdict.sentence), style=LEVELS[verdict.level]),
        *(Text(clean(line), style="dim") for line in about),
    ]


def section(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def lines_under(title: str, heading: Sequence[str], lines: Sequence[Sequence[str]]) -> list[RenderableType]:
    """A table under its title; nothing where there are no lines."""
    if not lines:
        return []
    table = Table.grid(padding=(0, 2))
    for _ in heading:
        table.add_column()
    table.add_row(*(Text(clean(word), style="dim") for word in heading))
    for line in lines:
        table.add_row(*(Text(clean(word)) for word in line))
    return [Text.assemble("\n", (clean(title), "bold")), table]
