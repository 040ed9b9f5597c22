"""How faithful explanations are, in a terminal: the verdict and a table of methods."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.faithfulness import Faithfulness
from attnscope.reporting.faithfulness.words import FIRST, SECOND, difference_lines, lines, sentences, verdict
from attnscope.reporting.terminal import opening, section

SHORT = {
    **{"positive": "pos", "negative": "neg", "comprehensive": "compr", "sufficient": "suff"},
    **{"soft comprehensive": "soft compr", "soft sufficient": "soft suff"},
}  # 80 columns are few
MOST_DIFFERENCES = 40


def show(found: Faithfulness, *, verbose: bool = False) -> RenderableType:
    said = sentences(found)[1:]
    parts: list[RenderableType] = [
        *opening(verdict(found), f"{found.model}, {found.class_name}, {found.dtype}"),
        Text(""),
        *(Text(clean(sentence)) for sentence in said),
        *(Text(clean(note), style="dim") for note in (found.notes if verbose else found.notes[:2])),
        section("Methods, the most faithful first (95% intervals)"),
        _table(found, FIRST),
    ]
    if verbose:
        parts += [section("Areas, and what is lost without and with the most important"), _table(found, SECOND)]
        apart = difference_lines(found)[:MOST_DIFFERENCES]
        if apart:
            table = _grid(3)
            for one, other, how in apart:
                table.add_row(Text(clean(one), style="bold"), Text(clean(f"over {other}")), Text(how))
            parts += [section("Differences that are real (intervals hold together)"), table]
    return Group(*parts)


def _table(found: Faithfulness, columns: tuple[str, ...]) -> Table:
    table = _grid(len(columns))
    table.add_row(*(Text(SHORT.get(name, name), style="dim") for name in columns))
    for cells in lines(found, columns):
        table.add_row(*(Text(clean(cell), style="bold" if n == 0 else "") for n, cell in enumerate(cells)))
    return table


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for place in range(columns):
        table.add_column(no_wrap=place > 0, overflow="fold")
    return table
