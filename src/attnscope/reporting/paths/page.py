"""The page of a decomposition into paths: one HTML file in the look of the scan report.

Bars and curves are Altair charts drawn to SVG while the page is written, with colours from CSS variables. Grids of
heads are plain SVG whose cells carry classes of the page's own diverging ramp, so that they follow light and dark, and
their numbers as titles. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.charts.palette import STEPS
from attnscope.charts.path_panels import (
    head_length_rows,
    length_chart,
    player_chart,
    player_rows,
    reconstruction_chart,
    seen_lengths,
    value_rows,
)
from attnscope.core.numerals import numeral
from attnscope.records.paths import PathReport
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn
from attnscope.reporting.paths.vocabulary import chain_words, of_all_tokens, probability_words, target_word
from attnscope.reporting.paths.words import length_lines, sentences, verdict


@dataclass(frozen=True)
class Cell:
    """One square of a grid: where it is, its step of the ramp, and what it says."""

    column: int
    row: int
    step: int
    label: str


@dataclass(frozen=True)
class Grid:
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[Cell, ...]
    reach: str  # the largest value of either sign
    across: str  # what columns are
    down: str


def render(report: PathReport) -> str:
    """The page as text. Equal records give equal pages."""
    small = _left_out(report)
    figures = [
        drawn(
            length_chart(report, title=False),
            "lengths",
            title="Share by length",
            caption=f"All paths through that many heads, added up.{small}",
        ),
        drawn(
            reconstruction_chart(report, title=False),
            "reached",
            title="When only lengths up to k count",
            caption=f"What the model makes of the shortest paths alone{_meaning(report)}; dashed: the whole model."
            f"{small}",
        ),
    ]
    players = None
    if player_rows(report):
        players = drawn(
            player_chart(report, title=False),
            "players",
            title="Heads and MLPs as players of one game",
            caption="Shapley values by block; a block's heads are added up. A path is shared by all heads and MLPs on "
            "it.",
        )
    heading, *lines = length_lines(report)
    largest = max((abs(chain.contribution) for chain in report.top), default=1.0) or 1.0
    return page(
        "paths.html",
        verdict=verdict(report),
        figures=[*figures, *([players] if players else [])],
        styles=("paths.css",),
        data=report,
        value=numeral(report.value),
        sentences=sentences(report),
        asked=_asked(report),
        word=target_word(report),
        marked=None if report.output == "states" else report.position,
        heading=heading,
        lines=lines,
        drawings=figures,
        players=players,
        values=_grid(value_rows(report), "layer", "head"),
        by_length=_grid(head_length_rows(report), "length", "head"),
        chains=[
            (
                chain,
                chain_words(chain),
                numeral(chain.contribution),
                numeral(chain.of_token),
                round(100 * abs(chain.contribution) / largest, 1),
            )
            for chain in report.top
        ],
        missed=numeral(report.top_missed),
        provenance=rows(report.provenance),
    )


def _asked(report: PathReport) -> str:
    """What the marked token is, where one is: states, and one class of the whole text, are asked for at none."""
    if report.output == "states" or report.position is None:
        return "The text as the model reads it."
    about = "; the target is of all tokens" if of_all_tokens(report) else ""
    return f"The text as the model reads it; marked is the token at which it is asked{about}."


def _meaning(report: PathReport) -> str:
    """What is drawn over k."""
    if not of_all_tokens(report):
        return f"; {probability_words(report)}"
    where = "" if report.position is None else f" at token {report.position}"
    return f"; distance is from the model's own output{where}, relative to it"


def _left_out(report: PathReport) -> str:
    rest = report.lengths[seen_lengths(report) :]
    return f" Lengths from {rest[0].length} on add too little to be seen and are left out." if rest else ""


def _grid(rows: Sequence[Mapping[str, Any]], across: str, down: str) -> Grid:
    """`rows` are those of a chart: a value and its label at every place."""
    columns, lines = (list(dict.fromkeys(row[name] for row in rows)) for name in (across, down))
    reach = max((abs(row["value"]) for row in rows), default=0.0)
    middle = STEPS // 2
    cells = tuple(
        Cell(
            columns.index(row[across]),
            lines.index(row[down]),
            middle + round(middle * row["value"] / reach) if reach else middle,
            row["label"],
        )
        for row in rows
    )
    return Grid(tuple(map(str, columns)), tuple(map(str, lines)), cells, numeral(reach), across, down)
