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
from attnscope.reporting.document import environment, flat, page_style, policy


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
    from attnscope.reporting.paths.vocabulary import chain_words, target_word
    from attnscope.reporting.paths.words import length_lines, sentences
    from attnscope.reporting.survey.figures import drawing

    templates = environment()
    style = page_style(templates) + templates.get_template("paths.css").render()
    small = _left_out(data)
    figures = [
        (
            "Share by length",
            f"All paths through that many heads, added up.{small}",
            drawing(length_chart(data, title=False), "lengths"),
        ),
        (
            "When only lengths up to k count",
            f"What the model makes of the shortest paths alone{_meaning(data)}; dashed: the whole model.{small}",
            drawing(reconstruction_chart(data, title=False), "reached"),
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
        asked=_asked(data),
        word=target_word(data),
        marked=None if data["output"] == "states" else data["position"],
        heading=heading,
        lines=lines,
        figures=figures,
        players=drawing(player_chart(data, title=False), "players") if player_rows(data) else None,
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


def _asked(data: Mapping[str, Any]) -> str:
    """What the marked token is, where one is: states, and one class of the whole text, are asked for at none."""
    from attnscope.reporting.paths.vocabulary import of_all_tokens

    if data["output"] == "states" or data["position"] is None:
        return "The text as the model reads it."
    about = "; the target is of all tokens" if of_all_tokens(data) else ""
    return f"The text as the model reads it; marked is the token at which it is asked{about}."


def _meaning(data: Mapping[str, Any]) -> str:
    """What is drawn over k."""
    from attnscope.reporting.paths.vocabulary import of_all_tokens, probability_words

    if not of_all_tokens(data):
        return f"; {probability_words(data)}"
    where = "" if data["position"] is None else f" at token {data['position']}"
    return f"; distance is from the model's own output{where}, relative to it"


def _left_out(data: Mapping[str, Any]) -> str:
    from attnscope.charts.path_panels import seen_lengths

    rest = data["lengths"][seen_lengths(data) :]
    return f" Lengths from {rest[0]['length']} on add too little to be seen and are left out." if rest else ""


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
