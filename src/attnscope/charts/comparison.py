"""Two surveys in one chart: their lines against depth.

    chart = comparison_profile(a.table(), b.table(), card, names=("step 1000", "step 2000"))

Depths need not agree: a 6-layer and a 12-layer model share one axis of layers.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from attnscope.charts.depth_profile import chart_title, first_panel, reading_size, value_axis, value_scale
from attnscope.charts.rows import Panel, depth_rows, unit_title
from attnscope.core.card import Card


def comparison_rows(
    first: pd.DataFrame, second: pd.DataFrame, card: Card, panel: Panel, names: tuple[str, str]
) -> pd.DataFrame:
    """The depth rows of both surveys, told apart by the column `survey`; first part only."""
    sides = []
    for table, name in zip((first, second), names, strict=True):
        rows = depth_rows(table, card, panel)
        rows = rows[rows["part"] == rows["part"].iloc[0]]
        sides.append(rows.assign(survey=name, label=[f"{name}, {text}" for text in rows["label"]]))
    both: pd.DataFrame = pd.concat(sides, ignore_index=True)
    return both


def comparison_profile(
    first: pd.DataFrame,
    second: pd.DataFrame,
    card: Card,
    *,
    names: tuple[str, str] = ("first", "second"),
    stack: str | None = None,
    site: str | None = None,
    width: int = 340,
    height: int = 150,
    title: bool = True,
) -> alt.LayerChart:
    """Two lines with their bands; the second is dashed, so that colour is not the only difference."""
    names = names if names[0] != names[1] else (f"{names[0]} (first)", f"{names[1]} (second)")
    panel = first_panel(first, card, stack, site)
    rows = comparison_rows(first, second, card, panel, names)
    x = alt.X(
        "depth:Q",
        title="layer",
        scale=alt.Scale(nice=False, zero=False, padding=6),
        axis=alt.Axis(tickMinStep=1, format="d", tickCount=8),
    )
    scale = value_scale(rows, card)
    colour = alt.Color("survey:N", sort=list(names), title=None, legend=alt.Legend(orient="top", labelLimit=160))
    dash = alt.StrokeDash(
        "survey:N", sort=list(names), scale=alt.Scale(range=[[1, 0], [5, 3]]), title=None, legend=None
    )
    base = alt.Chart(rows).transform_filter("isValid(datum.mean)")
    y = alt.Y("mean:Q", scale=scale)
    chart = alt.layer(
        base.mark_area(style="spread").encode(
            x=x,
            y=alt.Y("low:Q", scale=scale, title=unit_title(card), axis=value_axis(rows, card)),
            y2="high:Q",
            color=colour,
        ),
        base.mark_line(style="line").encode(x=x, y=y, color=colour, strokeDash=dash),
        base.mark_circle(style="reading", size=reading_size(rows)).encode(
            x=x,
            y=y,
            color=colour,
            description="label:N",
            tooltip=["survey:N", "depth:Q", "mean:Q", "low:Q", "high:Q"],
        ),
    ).properties(width=width, height=height)
    return chart.properties(title=chart_title(card, panel, "both surveys")) if title else chart
