"""A decomposition into paths in a terminal: sentences, the table of lengths, heads, and the largest single paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.charts.numerals import numeral
from attnscope.pages.path_words import chain_words, length_lines, sentences
from attnscope.pages.terminal import clean, print_page, section

MOST_HEADS = 6
MOST_CHAINS = 8


def print_paths(data: Mapping[str, Any], page: Path | None = None, console: Console | None = None) -> None:
    """`data` is `PathReport.to_json()`."""
    print_page(paths_summary(data), page, console or Console())


def paths_summary(data: Mapping[str, Any]) -> Group:
    parts: list[RenderableType] = [
        Text(""),
        Text(clean(data["model"]), style="bold"),
        Text(clean(f"{data['target']} = {numeral(data['value'])}"), style="dim"),
        Text(""),
        *(Text(clean(sentence)) for sentence in sentences(data)),
        *(Text(clean(note), style="dim") for note in data["notes"]),
        section("By length (heads passed)"),
        _length_table(data),
        section("Heads that move it most (Shapley values)"),
        _head_table(data),
        section("Largest single paths"),
        _chain_table(data),
    ]
    return Group(*parts)


def _length_table(data: Mapping[str, Any]) -> Table:
    """Constants and mean paths are left to the page: 80 columns are few."""
    heading, *lines = length_lines(data)
    columns = [i for i, name in enumerate(heading) if name not in ("from constants", "mean path", "sum so far")]
    table = Table.grid(padding=(0, 2))
    for i in columns:
        words = heading[i].startswith("says")
        table.add_column(justify="left" if words else "right", no_wrap=True, overflow="ellipsis", max_width=14)
    table.add_row(*(Text(heading[i], style="dim") for i in columns))
    for line in lines:
        table.add_row(*(Text(clean(line[i]), style="bold" if heading[i] == "adds" else "") for i in columns))
    return table


def _head_table(data: Mapping[str, Any]) -> Table:
    places = [(value, layer, head) for layer, row in enumerate(data["head_values"]) for head, value in enumerate(row)]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    for value, layer, head in sorted(places, key=lambda place: -abs(place[0]))[:MOST_HEADS]:
        table.add_row(Text(f"layer {layer} head {head}"), numeral(value))
    return table


def _chain_table(data: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for chain in data["top"][:MOST_CHAINS]:
        table.add_row(numeral(chain["contribution"]), Text(clean(chain_words(chain))))
    return table
