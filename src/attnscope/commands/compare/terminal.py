"""Surveys side by side in a terminal: the verdict, what got worse and better, the largest changes in words. At most
thirty lines of eighty columns; with `verbose`, tables of all that is there."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.compare.record import Comparison
from attnscope.commands.compare.settings import setting_notes
from attnscope.commands.compare.tables import Found, Line, finding_sides, headline_sides
from attnscope.commands.compare.words import (
    EFFECT,
    change_sentence,
    change_words,
    changes_worth_listing,
    largest_changes,
    names,
    row,
    verdict,
)
from attnscope.core.words import clean, count
from attnscope.reports.terminal import opening, section

MOST_ROWS, MOST_CHANGES, MOST_LINES = 7, 8, 6
MANY_CHANGES = 40  # with `verbose`
MOST_COLUMNS = 4
COLUMN = 12  # letters of a survey's name at the head of a column
STYLES = {"worse": "red", "new": "red", "better": "green", "gone": "green", "changed": "blue", "same": "dim"}


def show(found: Comparison, *, verbose: bool = False) -> RenderableType:
    """What a console prints."""
    told = names(found)
    about = f"{told[0]} → {told[1]}" if len(told) == 2 else f"{told[0]} against {', '.join(told[1:])}"
    parts: list[RenderableType] = [
        *opening(verdict(found), about),
        *_notes(found, verbose),
        *_findings(found, verbose),
    ]
    if len(told) > 2 or verbose:
        parts += _sides(found, verbose)
    parts += _changes(found, verbose, MOST_CHANGES if len(told) == 2 else MOST_CHANGES // 2)
    return Group(*parts)


def _notes(found: Comparison, verbose: bool) -> list[RenderableType]:
    """In full with `verbose`; else what differs, in two lines at most."""
    notes = setting_notes(found)
    if not notes:
        return []
    if verbose:
        return [Text(clean(f"Not comparable one to one. {note}"), style="dim") for note in notes]
    more = f" ({count(len(notes) - 1, 'more difference')}: --verbose)" if len(notes) > 1 else ""
    first = notes[0].split(" (", maxsplit=1)[0].rstrip(".:")
    return [Text(clean(f"Not comparable one to one: {first[:1].lower()}{first[1:]}{more}."), style="dim")]


def _findings(found: Comparison, verbose: bool) -> list[RenderableType]:
    """A line for every finding that changed, the worst first."""
    pairs = [pair for pair in found.findings if pair.status != "same"]
    if len(found.surveys) > 2 and not verbose:
        return []  # the table says it
    if not pairs:
        return [section("No finding changed")]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=not verbose, overflow="ellipsis")
    for pair in pairs if verbose else pairs[:MOST_ROWS]:
        words = Text(clean(row(found, pair).words))
        if len(found.surveys) > 2:
            words.append(clean(f" in {names(found)[pair.survey]}"), style="dim")
        if verbose:
            words.append(f"\n{clean(pair.either.sentence)}", style="dim")
        table.add_row(Text(pair.status, style=STYLES[pair.status]), words)
    hidden = len(pairs) - MOST_ROWS
    more = [Text(f"and {count(hidden, 'other finding')}: --verbose", style="dim")] if hidden > 0 and not verbose else []
    return [Text(""), table, *more]


def _sides(found: Comparison, verbose: bool) -> list[RenderableType]:
    """Findings and headline numbers, a column for each survey."""
    tables = [survey.table() for survey in found.surveys]
    findings = [
        (title, *(", ".join(_short(one) for one in cell) or "–" for cell in cells))
        for title, cells in finding_sides(found)
    ]
    numbers = [_cells(line) for line in headline_sides(found, tables)]
    most = len(findings) + len(numbers) if verbose else MOST_LINES
    told = names(found)
    if len(told) > MOST_COLUMNS:
        return [Text(f"\n{len(told)} surveys are too many for this screen: --out writes a page.", style="dim")]
    heading = ("", *(name if len(name) <= COLUMN else f"…{name[1 - COLUMN :]}" for name in told))
    parts = _columns("Findings (notes, where nothing else is said)", heading, findings[:most])
    parts += _columns("Numbers", heading, numbers[:most])
    hidden = max(0, len(findings) - most) + max(0, len(numbers) - most)
    return [*parts, Text(f"and {count(hidden, 'other line')}: --verbose", style="dim")] if hidden else parts


def _short(one: Found) -> str:
    return one.number if one.severity == "note" else f"{one.number} {one.word[:4]}."


def _columns(title: str, heading: Sequence[str], lines: Sequence[Sequence[str]]) -> list[RenderableType]:
    """A table in which one line is one line, whatever its words."""
    if not lines:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=30 if len(heading) <= 4 else 22)
    for _ in heading[1:]:
        table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(clean(word), style="dim") for word in heading))
    for line in lines:
        table.add_row(*(Text(clean(word)) for word in line))
    return [section(title), table]


def _cells(line: Line) -> tuple[str, ...]:
    return (line.label, *(cell[0] if cell else "–" for cell in line.cells))


def _changes(found: Comparison, verbose: bool, most: int) -> list[RenderableType]:
    changes = changes_worth_listing(found, MANY_CHANGES) if verbose else largest_changes(found, most)
    if not changes:
        return [section(change_words(found))]
    parts: list[RenderableType] = [section(change_words(found))]
    if verbose:
        parts.append(Text(EFFECT, style="dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True, style="dim")
    for one in changes:
        table.add_row(Text(clean(change_sentence(found, one))), f"{one.effect:+.1f}" if verbose else "")
    return [*parts, table]
