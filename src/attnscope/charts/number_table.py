"""A figure that is a table: a row for every x, a column for every series, numbers as text.

Numbers of different columns have no axis in common, so nothing is drawn to scale; a number that does not exist is a
dash. The spread over seeds is what a pointer and a screen reader are told.
"""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from attnscope.charts.end_labels import LETTER, label_room
from attnscope.core.experiment import Figure
from attnscope.core.numerals import numeral

ROW, LINE = 22, 13  # pixels of a row, and of a line of a heading
LINES = 3  # of a heading, at most
WIDEST = 110  # pixels of a column
BREAK = "¦"  # between the lines of a heading: a line feed in a label is drawn, not split at


def number_table(figure: Figure, *, title: bool = True, width: int = 1000) -> alt.LayerChart:
    """`width` pixels with the names of rows; headings are broken where a column is narrower than they are."""
    names, columns = (list(dict.fromkeys(str(getattr(row, of)) for row in figure.rows)) for of in ("x", "series"))
    names_room = min(label_room(names), width // 2)
    side = min(WIDEST * len(columns), width - names_room)
    letters = max(4, math.floor(side / len(columns) / LETTER))
    heading = {column: _broken(column, letters) for column in columns}
    lines = max(text.count(BREAK) for text in heading.values())
    rows = pd.DataFrame(
        [
            {
                "row": str(point.x),
                "column": heading[point.series],
                "text": numeral(point.y) if math.isfinite(point.y) else "–",
                "label": f"{point.x}, {point.series}: {_spread(point.y, point.low, point.high)}",
            }
            for point in figure.rows
        ]
    )
    x = alt.X(
        "column:N",
        sort=list(heading.values()),
        title=None,
        scale=alt.Scale(type="band"),
        axis=alt.Axis(
            orient="top",
            labelAngle=0,
            labelExpr=f"split(datum.label, '{BREAK}')",
            labelLimit=0,
            labelPadding=4 + LINE * lines,  # further lines go down from the first
            ticks=False,
        ),
    )
    between = alt.Axis(labelLimit=names_room, grid=True, tickBand="extent")  # rules between rows, not through them
    y = alt.Y("row:N", sort=names, title=None, scale=alt.Scale(type="band"), axis=between)
    told: dict[str, Any] = {"description": "label:N", "tooltip": [alt.Tooltip("label:N", title=" ")]}
    chart = alt.layer(alt.Chart(rows).mark_text(style="number").encode(x=x, y=y, text="text:N", **told))
    chart = chart.properties(width=side, height=ROW * len(names))
    return chart.properties(title=alt.TitleParams(figure.title)) if title else chart


def _spread(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "no number"
    return numeral(value) + (f" ({numeral(low)} to {numeral(high)})" if low < high else "")


def _broken(heading: str, letters: int) -> str:
    """Words on as many lines as they need; what is still too much for `LINES` stays on the last."""
    lines: list[str] = []
    for word in heading.split():
        fits = bool(lines) and (len(lines[-1]) + 1 + len(word) <= letters or len(lines) == LINES)
        lines = [*lines[:-1], f"{lines[-1]} {word}"] if fits else [*lines, word]
    return BREAK.join(lines)
