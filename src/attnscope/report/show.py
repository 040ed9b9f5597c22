"""What every terminal screen shares: clean text, titles, tables, and where the files are. 80 columns, colour optional.

Everything is built from `Text`, never from markup: a model called `[red]x` is called just that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnscope.core.errors import RefusalError
from attnscope.core.words import clean
from attnscope.report.document import verdict
from attnscope.report.export import numbered, render
from attnscope.report.record import Record, ask
from attnscope.report.theme import specification

if TYPE_CHECKING:
    from attnscope.report.document import Verdict

# How a record shows itself in a notebook: its verdict, its main chart, and what else its kind has to show.
#
# A chart that cannot be drawn (nothing was measured along it) leaves its place empty. All text is escaped, and the
# chart is an SVG of its own, in the light theme on a white ground, so that it is read in a dark notebook too.

MARKS = {"calm": "✓", "info": "ⓘ", "warning": "⚠", "critical": "✕"}
_MOST_SENTENCES = 12


def html(record: Record) -> str:
    """The division that `_repr_html_` gives."""
    found = verdict(record)
    rest = ask(record, "html") or _sentences(record, found.sentence)
    return (
        f"<div><p>{escape(repr(record))}</p><p><b>{MARKS[found.level]} {escape(found.sentence)}</b></p>"
        f"{picture(record)}{rest}</div>"
    )


def picture(record: Record) -> str:
    """The main chart as SVG."""
    try:
        chart = record.chart()
    except RefusalError:
        return ""
    svg = render(specification(chart, "light", validate=False), ".svg").decode()
    return f"<div>{numbered(svg, f'attnscope-{record.KIND}')}</div>"


def _sentences(record: Record, said: str) -> str:
    others = [sentence for sentence in record.sentences() if sentence != said]
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in others[:_MOST_SENTENCES])


LEVELS: dict[str, str] = {"calm": "bold green", "info": "bold", "warning": "bold yellow", "critical": "bold red"}
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
