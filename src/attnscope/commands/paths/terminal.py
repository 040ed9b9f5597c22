"""A decomposition into paths in a terminal and in a notebook."""

from __future__ import annotations

from html import escape
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.paths.carriers import constants_matter, heads
from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.vocabulary import chain_words, head_name, other_than_said, signed, visible
from attnscope.commands.paths.words import CONSTANTS, OF_TARGET, length_lines, player_words, sentences, verdict
from attnscope.core.words import clean
from attnscope.reports.terminal import opening, section
from attnscope.reports.words import beginning_words


def html(report: PathReport) -> str:
    """Return sentences and the table of lengths for a notebook. All text is escaped."""
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(report)[1:])  # the first is the verdict
    head, *rows = length_lines(report)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    table = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"{words}<table><tr>{top}</tr>{table}</table>"


FEW, MANY = 4, 12  # heads
FEW_PATHS, FEW_SENTENCES, FEW_NOTES = 4, 2, 2
COLUMNS = 80


def show(report: PathReport, *, verbose: bool = False) -> RenderableType:
    """Return the screen; with `verbose`, all sentences, heads and paths, and the table of lengths."""
    said = sentences(report)[1:]
    game = player_words(report)
    begun = beginning_words(report.provenance)
    shown = [*said, *([game] if game else [])] if verbose else said[: FEW_SENTENCES - bool(report.notes)]
    parts: list[RenderableType] = [
        *opening(verdict(report), ", ".join((f"{report.model}: {visible(report.target)}", *begun))),
        Text(""),
        *(Text(clean(sentence)) for sentence in shown),
        *(Text(clean(note), style="dim") for note in (report.notes if verbose else report.notes[:FEW_NOTES])),
        section("Heads that move it most (Shapley values)"),
        _head_table(report, MANY if verbose else FEW),
        section("Largest single paths"),
        _chain_table(report, len(report.top) if verbose else FEW_PATHS),
    ]
    if verbose:
        parts += [section("By length (heads passed)"), _length_table(report)]
    return Group(*parts)


def _length_table(report: PathReport) -> Table:
    """Fit the table into 80 columns: mean paths and sums are only on the page, and so are constants that add little and
    the probability of a target that the model predicts. If both of these are shown, the residual is not."""
    heading, *lines = length_lines(report)
    left = {"mean path", "sum so far"}
    left |= set() if constants_matter(report) else {CONSTANTS}
    left |= set() if other_than_said(report) else {OF_TARGET}
    left |= {"residual"} if not left & {CONSTANTS, OF_TARGET} else set()
    columns = [i for i, name in enumerate(heading) if name not in left]
    titles = {i: heading[i].replace(" ", "\n", 1) for i in columns}
    widths = {i: max(len(part) for part in (*titles[i].split("\n"), *(line[i] for line in lines))) for i in columns}
    words = [i for i in columns if heading[i].startswith("says")]
    gap = 2 if sum(widths.values()) + 2 * (len(columns) - 1) <= COLUMNS else 1
    free = COLUMNS - gap * (len(columns) - 1) - sum(widths[i] for i in columns if i not in words)
    table = Table.grid(padding=(0, gap, 0, 0))
    for i in columns:
        width = max(7, min(widths[i], free // len(words), 16)) if i in words else widths[i]
        justify: Literal["left", "right"] = "left" if i in words else "right"
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis", max_width=width, vertical="bottom")
    table.add_row(*(Text(titles[i], style="dim") for i in columns))
    for line in lines:
        table.add_row(*(Text(clean(line[i]), style="bold" if heading[i] == "adds" else "") for i in columns))
    return table


def _head_table(report: PathReport, most: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    for one in heads(report)[:most]:
        table.add_row(Text(head_name(one.block, one.head)), signed(one.value))
    return table


def _chain_table(report: PathReport, most: int) -> Table:
    """Return the largest paths, each with the contribution of the token that it is named after."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    if report.top:
        table.add_row(*(Text(words, style="dim") for words in ("adds", "from that\ntoken alone", "path")))
    for chain in report.top[:most]:
        table.add_row(signed(chain.contribution), signed(chain.of_token), Text(clean(chain_words(chain))))
    return table
