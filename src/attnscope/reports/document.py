"""The content of a record as a `Document`, which a page, a terminal and a notebook all show.

    def document(found: Collapse) -> Document:          # in the words.py of a command
        return Document(verdict(found), "How different the tokens of x stay", about=("12 blocks",), sections=(
            Section("Findings", sentences=("...",)),
            Section("Curves", figures=(Figure("curves", "Residual by block", drawn_by("...chart:curves", found)),)),
        ))

Text is plain: renderers escape it. On pages, arXiv numbers become links and `words in backticks` become code.
Figures are drawn when a page needs them, so a terminal never imports altair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from attnscope.core.words import numeral
from attnscope.reports.tabs import Tab
from attnscope.reports.words import Level, Verdict


@dataclass(frozen=True)
class Table:
    """Rows of text under an optional heading.

    `align` has one letter for each column, l or r; by default the first column is aligned left and the others right.
    A terminal shows the first `brief` rows, and all of them with --verbose; None shows all rows always.
    """

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    note: str = ""
    align: str = ""
    brief: int | None = None

    @property
    def alignment(self) -> str:
        columns = len(self.heading) or max(map(len, self.rows), default=0)
        return self.align or ("l" + "r" * columns)[:columns]


@dataclass(frozen=True)
class Figure:
    """A chart on a page. `name` is unique on the page and names its files; screen readers read `summary`.

    `draw(width)` returns an Altair chart, a Vega-Lite specification, or SVG text, `width` pixels wide. A themed figure
    chooses its own colours: `draw(width, theme=...)` is called for "light" and for "dark".
    """

    name: str
    title: str
    draw: Callable[..., Any]
    caption: str = ""
    summary: str = ""
    themed: bool = False


@dataclass(frozen=True)
class Card:
    """A judged statement, such as a claim or a finding: a card on a page, a line in a terminal.

    `label` is the judgement in one or two words and `level` its colour. `facts` are (name, lines) pairs, shown on the
    page and with --verbose.
    """

    level: Level
    label: str
    sentence: str
    facts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    about: str = ""


@dataclass(frozen=True)
class Section:
    """Part of a document, shown in the order of its fields; on a page, its first figure comes before its words.

    `background` says how to read the section: on the page, and in a terminal with --verbose. `items` is a list; with
    `coloured`, item i has the colour of line i in the charts. `link` is a short title for the table of contents.
    `detail` folds the section on the page and hides it in a terminal without --verbose. `beside` puts the tables side
    by side as far as there is room.
    """

    title: str
    background: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    tabs: tuple[Tab, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    link: str = ""
    detail: bool = False
    coloured: bool = False
    beside: bool = False


@dataclass(frozen=True)
class Document:
    """A verdict and its sections. `about` lines say what was measured, `provenance` rows where the numbers come from.

    A page begins with the first section that has a picture, and leaves out an `about` line that equals its title: a
    terminal shows no title. A page names the `command` that made the record; by default the command of the record's
    class.
    """

    verdict: Verdict
    title: str
    about: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    provenance: Sequence[tuple[str, str]] = ()
    command: str = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the verdict, then all sentences and list items outside of details."""
        shown = [section for section in self.sections if not section.detail]
        return (self.verdict.sentence, *(text for part in shown for text in (*part.sentences, *part.items)))


def drawn_by(function: str, *args: Any, **options: Any) -> Callable[..., Any]:
    """Return a drawing function for a `Figure`. It imports "module:name" when it is called, and passes the width on."""

    def draw(width: int, **more: Any) -> Any:
        module, _, name = function.partition(":")
        return getattr(import_module(module), name)(*args, width=width, **options, **more)

    return draw


def rows(data: Any, name: str = "") -> list[tuple[str, str]]:
    """Return nested data as (name, value) rows, such as ("model hash", "sha256:...").

    Empty and missing values are skipped. A word that repeats the one before it appears once: `model type`, not
    `model model type`.
    """
    if isinstance(data, dict):
        return [row for key, value in data.items() for row in rows(value, _joined(name, str(key)))]
    if isinstance(data, list | tuple) and any(isinstance(value, dict) for value in data):
        return [row for n, value in enumerate(data) for row in rows(value, f"{name} {n + 1}")]
    if data is None or data == "" or (isinstance(data, list | tuple) and not data):
        return []
    if isinstance(data, list | tuple):
        return [(name, ", ".join(_text(value) for value in data))]
    return [(name, _text(data))]


def _joined(name: str, key: str) -> str:
    words = key.replace("_", " ").split()
    if name and words and words[0] == name.rsplit(maxsplit=1)[-1]:
        words = words[1:]
    return " ".join((name, *words)).strip()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return numeral(value) if isinstance(value, float) else str(value)
