"""Print any `Document` on a terminal, with helpers for custom screens. Output fits 80 columns.

All output is built from `Text`, never from markup, so that a model called `[red]x` is printed as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.color import Color
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnscope.core.words import clean
from attnscope.reports.tabs import Shade, ShadedText, Tab

if TYPE_CHECKING:  # catalog.py prints lists with this module, without records
    from attnscope.reports import document
    from attnscope.reports.record import Record
    from attnscope.reports.words import Verdict

LEVELS: dict[str, str] = {"calm": "bold green", "note": "bold", "warning": "bold yellow", "critical": "bold red"}
OUTCOMES = {"reproduced": "green", "not reproduced": "yellow", "contradicted": "red", "not run": "dim"}  # by verdict
MOST_NOTES = 2  # most rows or sentences in a section without --verbose
MOST_NAME, MOST_HEADING = 30, 12  # longest text, in characters, that does not wrap: in a first column, in a heading
MOST_PIECES = 400  # most pieces of a shaded text that are printed
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
    """Print a record with the command's `show` (with `verbose`, its tables too), then the paths of its files."""
    from attnscope.reports.record import ask

    shown = ask(record, "show", verbose=verbose, **options)
    print_screen(shown, files or {}, console or Console(highlight=False))


def print_screen(what: RenderableType, files: Mapping[str, Path | None], console: Console) -> None:
    """Print a screen and the paths of files. On a terminal without Unicode, use ASCII characters."""
    written = {label: path for label, path in files.items() if path is not None}
    width = max((7, *map(len, written)))
    with console.capture() as captured:
        console.print(what)
        for place, (label, path) in enumerate(written.items()):
            # Paths never wrap, so that they can be copied.
            line = Text.assemble("" if place else "\n", (f"{label:<{width}} ", "dim"), clean(str(path)))
            console.print(line, soft_wrap=True)
        console.print()
    text = captured.get()
    if console.options.ascii_only:
        text = text.translate(ASCII).encode("ascii", "replace").decode()
    console.file.write(text)


def document_screen(shown: document.Document, *, verbose: bool = False) -> RenderableType:
    """Return a document for a console. Without `verbose`, leave out details, background, facts and most rows."""
    sections = [part for part in shown.sections if verbose or not part.detail]
    parts = [block for place, part in enumerate(sections) for block in _section(part, verbose, titled=place > 0)]
    return Group(*opening(shown.verdict, *shown.about), *parts)


def _section(part: document.Section, verbose: bool, titled: bool) -> list[RenderableType]:
    notes = part.notes if verbose else part.notes[:MOST_NOTES]
    tables = [table for table in part.tables if table.rows and (verbose or table.brief != 0)]
    blocks: list[RenderableType] = [
        *(Text(clean(text)) for text in part.sentences),
        *(Text(f"· {clean(text)}") for text in part.items),
        *([_cards(part.cards, verbose)] if part.cards else []),
        *(line for tab in part.tabs[: None if verbose else 1] for line in _tab(tab, part.title, verbose)),
        *(Text(clean(text), style="dim") for text in notes),
    ]
    if part.beside and tables:
        grids = [Group(Text(clean(table.caption), style="bold"), grid(table, verbose)) for table in tables]
        blocks.append(Columns(grids, padding=(1, 3)))
        tables = []
    for number, table in enumerate(tables):
        heading = table.caption or ("" if titled else part.title)
        blocks += [Text.assemble("\n" if blocks or number else "", (clean(heading), "bold"))] if heading else []
        blocks += [Text(clean(table.note), style="dim")] if verbose and table.note else []
        blocks.append(grid(table, verbose))
    if not blocks:
        return []
    background = (Text(clean(text), style="dim") for text in (part.background if verbose else ()))
    return [section(clean(part.title)) if titled else Text(""), *background, *blocks]


def _tab(tab: Tab, title: str, verbose: bool) -> list[RenderableType]:
    lines: list[RenderableType] = [section(clean(f"{title}: {tab.title}"))]
    lines += [Text(clean(tab.caption), style="dim")] if verbose and tab.caption else []
    for block in tab.blocks:
        if isinstance(block, ShadedText):
            label = Text(clean(f"{block.label}: ") if block.label else "", style="dim")
            more = len(block.pieces) - MOST_PIECES
            rest = Text(f" ... and {more} more" if more > 0 else "", style="dim")
            lines.append(Text.assemble(label, shaded(block.pieces[:MOST_PIECES]), rest))
        elif block.lines_of_text:
            lines += [Text(clean(f"{block.label}:"), style="dim")] if block.label else []
            lines += [shaded(row, solid=True) for row in block.lines_of_text]
            lines += [Text(clean(block.caption), style="dim")] if block.caption else []
    return lines


def shaded(pieces: Sequence[Shade], solid: bool = False) -> Text:
    """Return text on background colours. `solid` text has the colour of its background: only a console without colours
    shows it."""
    from attnscope.reports.colours import colour_of, ink

    line = Text("")
    for piece in pieces:
        style = Style(underline="underlined" in piece.mark, italic="dotted" in piece.mark, dim="dim" in piece.mark)
        if piece.colour:
            ground = colour_of(piece.colour)
            style += Style(color=Color.parse(ground if solid else ink(ground)), bgcolor=Color.parse(ground))
        line.append(clean(piece.text.replace("\n", "⏎")), style=style)
    return line


def _cards(cards: Sequence[document.Card], verbose: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for card in cards:
        table.add_row(Text(clean(card.label), style=LEVELS[card.level]), Text(clean(card.sentence)))
        for name, lines in card.facts if verbose else ():
            table.add_row(Text(clean(name.lower()), style="dim"), Text(clean("; ".join(lines)), style="dim"))
    return table


def grid(table: document.Table, verbose: bool = True) -> Table:
    """Return a table for a console. Long text and headings wrap; numbers and short names do not."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(table.heading), header_style="dim")
    rows = table.rows if verbose else table.rows[: table.brief]
    headings = table.heading or ("",) * len(table.alignment)
    for column, (heading, side) in enumerate(zip(headings, table.alignment, strict=True)):
        longest = max((len(row[column]) for row in rows), default=0)
        number = side == "r"
        made.add_column(
            Text("\n".join(wrap(clean(heading), max(longest, MOST_HEADING), break_long_words=False))),
            justify="right" if number else "left",
            style="" if column else "bold",
            no_wrap=number or (column == 0 and longest <= MOST_NAME),
            overflow="fold",
        )
    for row in rows:
        made.add_row(*(Text(clean(cell)) for cell in row))
    return made


def opening(verdict: Verdict, *about: str) -> list[RenderableType]:
    """Return the first lines of a screen: the verdict, then what was measured."""
    return [
        Text(""),
        Text(clean(verdict.sentence), style=LEVELS[verdict.level]),
        *(Text(clean(line), style="dim") for line in about),
    ]


def section(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def lines_under(title: str, heading: Sequence[str], lines: Sequence[Sequence[str]]) -> list[RenderableType]:
    """Return a table under its title, or nothing if there are no lines."""
    if not lines:
        return []
    table = Table.grid(padding=(0, 2))
    for _ in heading:
        table.add_column()
    table.add_row(*(Text(clean(word), style="dim") for word in heading))
    for line in lines:
        table.add_row(*(Text(clean(word)) for word in line))
    return [Text.assemble("\n", (clean(title), "bold")), table]
