"""How faithful explanations are, in a terminal: the verdict and a table of methods."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.faithfulness import Faithfulness
from attnscope.reporting.faithfulness.words import HEADING, lines, sentences, verdict
from attnscope.reporting.terminal import opening, section

BRIEF = 4  # columns without --verbose
SHORT = {"positive": "pos", "negative": "neg", "comprehensive": "compr", "sufficient": "suff"}  # 80 columns are few


def show(found: Faithfulness, *, verbose: bool = False) -> RenderableType:
    said = sentences(found)[1:]
    columns = len(HEADING) if verbose else BRIEF
    table = Table.grid(padding=(0, 1 if verbose else 2))
    for place in range(columns):
        table.add_column(justify="right" if place > 1 else "left", no_wrap=place > 0, overflow="fold")
    table.add_row(*(Text(SHORT.get(word, word) if verbose else word, style="dim") for word in HEADING[:columns]))
    for line in lines(found):
        table.add_row(*(Text(clean(cell), style="bold" if n == 0 else "") for n, cell in enumerate(line[:columns])))
    return Group(
        *opening(verdict(found), f"{found.model}, {found.class_name}, {found.dtype}"),
        Text(""),
        *(Text(clean(sentence)) for sentence in said),
        *(Text(clean(note), style="dim") for note in (found.notes if verbose else found.notes[:2])),
        section("Methods, the most faithful first (95% intervals)"),
        table,
    )
