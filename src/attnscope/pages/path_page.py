"""The page of a decomposition into paths: one HTML file without a script, in the look of the scan report.

Bars and curves are Altair charts drawn to SVG while the page is written, with colours from CSS variables. Grids of
heads are plain SVG whose cells carry classes of the page's own diverging ramp, so that they follow light and dark, and
their numbers as titles. All text is escaped; the Content-Security-Policy allows the one style sheet and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope import __version__
from attnscope.charts.numerals import numeral
from attnscope.pages.document import environment, flat, page_style, policy


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


def write_path_page(data: Mapping[str, Any], path: Path | str) -> Path:
    """`data` is `PathReport.to_json()`. Written whole or not at all."""
    from attnscope.charts.export import write_file

    path = Path(path)
    write_file(path, render_path_page(data).encode("utf-8", errors="replace"))
    return path


def render_path_page(data: Mapping[str, Any]) -> str:
    """The page as text."""
    from attnscope.charts.path_panels import (
        head_length_rows,
        length_chart,
        player_chart,
        player_rows,
        reconstruction_chart,
        value_rows,
    )
    from attnscope.pages.path_words import chain_words, length_lines, sentences

    templates = environment()
    style = page_style(templates) + templates.get_template("paths.css").render()
    figures = [
        ("Share by length", "All paths through that many heads, added up.", _drawn(length_chart(data, title=False))),
        (
            "When only lengths up to k count",
            "What the model makes of the shortest paths alone; dashed: the whole model.",
            _drawn(reconstruction_chart(data, title=False)),
        ),
    ]
    heading, *lines = length_lines(data)
    largest = max((abs(chain["contribution"]) for chain in data["top"]), default=1.0) or 1.0
    by_length = head_length_rows(data)
    return templates.get_template("paths.html").render(
        policy=policy(style),
        style=style,
        version=__version__,
        data=data,
        value=numeral(data["value"]),
        sentences=sentences(data),
        heading=heading,
        lines=lines,
        figures=figures,
        players=_drawn(player_chart(data, title=False)) if player_rows(data) else None,
        values=_grid(value_rows(data), "layer", "head"),
        by_length=_grid(by_length, "length", "head"),
        chains=[
            (
                chain,
                chain_words(chain),
                numeral(chain["contribution"]),
                numeral(chain["of_token"]),
                round(100 * abs(chain["contribution"]) / largest, 1),
            )
            for chain in data["top"]
        ],
        missed=numeral(data["top_missed"]),
        provenance=flat(data["provenance"]),
    )


def _drawn(chart: Any) -> str:
    from attnscope.charts.export import render
    from attnscope.charts.theme import specification
    from attnscope.pages.figures import slim

    return slim(render(specification(chart, "page"), ".svg").decode())


def _grid(rows: Sequence[Mapping[str, Any]], across: str, down: str) -> Grid:
    from attnscope.charts.palette import STEPS

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
