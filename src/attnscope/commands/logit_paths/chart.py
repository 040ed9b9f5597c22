"""The chart of one attention logit: sources of the query by sources of the key."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.logit_paths.record import LogitReport
from attnscope.commands.logit_paths.words import source_words
from attnscope.commands.paths.vocabulary import head_name, quoted, signed
from attnscope.core.words import numeral
from attnscope.reports.theme import fit

STEP = 26  # pixels of a cell
REST = "all others"
NOTHING, WRITTEN = 1e-12, 0.01  # shares of the largest cell below which a source is not drawn, a number not written


def chart(report: LogitReport) -> Any:
    """Draw the grid of sources under a title that names the head and the two tokens."""
    looks = f"{quoted(report.tokens[report.query])} → {quoted(report.tokens[report.key])}"
    title = f"{report.model}, {head_name(report.block, report.head)}: {looks}"
    return _cells(report).properties(width=alt.Step(STEP * 1.6), title=alt.TitleParams(title, offset=12))


def term_grid(report: LogitReport, *, width: int) -> Any:
    return fit(_cells(report), width)


def _cells(report: LogitReport) -> Any:
    """Draw what every pair of sources adds to the lead: orange adds, blue subtracts. Sources that add nothing are
    left out.
    """
    rows, columns = (
        [*(source_words(report.sources[number]) for number in side), REST]
        for side in (report.grid.query, report.grid.key)
    )
    cells = pd.DataFrame(
        [
            {"query": row, "key": column, "lead": value, "label": f"{row} with {column}: {signed(value)}"}
            for row, values in zip(rows, report.grid.lead, strict=True)
            for column, value in zip(columns, values, strict=True)
        ]
    )
    largest = float(cells["lead"].abs().max()) or 1.0
    seen = cells["lead"].abs() > NOTHING * largest
    cells = cells[cells["query"].isin(cells["query"][seen]) & cells["key"].isin(cells["key"][seen])]
    cells = cells.assign(number=[numeral(v, 2) if abs(v) >= WRITTEN * largest else "" for v in cells["lead"]])
    # Numbers are written on the cells, so only the paler half of the colours is used.
    scale = alt.Scale(domain=[-2 * largest, 2 * largest], domainMid=0, range="diverging", nice=False)
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    plain = {"labelLimit": 200, "grid": False, "ticks": False}
    query, key = (quoted(report.tokens[token]) for token in (report.query, report.key))
    base = alt.Chart(cells).encode(
        x=alt.X("key:N", sort=columns, title=f"read by the key, {key}", axis=alt.Axis(labelAngle=-45, **plain)),
        y=alt.Y("query:N", sort=rows, title=f"read by the query, {query}", axis=alt.Axis(**plain)),
    )
    coloured = base.mark_rect().encode(
        color=alt.Color("lead:Q", scale=scale, title="adds to the lead", legend=legend),
        description="label:N",
        tooltip=[alt.Tooltip("label:N", title=" ")],
    )
    numbers = base.mark_text(style="number", aria=False).encode(text="number:N")
    return alt.layer(coloured, numbers).properties(height=alt.Step(STEP))
