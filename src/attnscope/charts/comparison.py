"""Two surveys in one chart: their lines against depth, and the difference of every head.

    chart = comparison_profile(a.table(), b.table(), card, names=("step 1000", "step 2000"))
    chart = comparison_grid(a.table(), b.table(), card)

Depths need not agree for lines (a 6-layer and a 12-layer model share one axis of layers); a difference per
head needs the same layers and heads on both sides, and covers those that both have.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attnscope.charts.depth_profile import chart_title, first_panel, reading_size, value_axis, value_scale
from attnscope.charts.head_grid import grid_axes
from attnscope.charts.numerals import numeral
from attnscope.charts.rows import Panel, depth_rows, head_rows, part_title, unit_title
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError


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
    colour = alt.Color(
        "survey:N", sort=list(names), title=None, legend=alt.Legend(orient="top", labelLimit=160)
    )
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


def difference_rows(first: pd.DataFrame, second: pd.DataFrame, panel: Panel, part: str) -> pd.DataFrame:
    """Second minus first for every head that both have: `layer, head, first, second, difference, label`."""
    a, b = (head_rows(table, panel, part)[["layer", "head", "mean"]] for table in (first, second))
    both = a.merge(b, on=["layer", "head"], suffixes=("_first", "_second"))
    both = both.rename(columns={"mean_first": "first", "mean_second": "second"})
    both["difference"] = both["second"] - both["first"]
    both["broken"] = ~np.isfinite(both["difference"])
    both["label"] = [
        f"layer {r['layer']}, head {r['head']}: {numeral(r['first'])} to {numeral(r['second'])}"
        for r in both.to_dict("records")
    ]
    return both


def comparison_grid(
    first: pd.DataFrame,
    second: pd.DataFrame,
    card: Card,
    *,
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
) -> alt.LayerChart:
    """Second minus first, a square per head; on a symmetric scale no change always has the same colour."""
    panel = first_panel(first, card, stack, site)
    part = card.parts[0] if part is None else part
    rows = difference_rows(first, second, panel, part)
    if rows.empty:
        raise RefusalError(
            f"The two surveys share no head for '{card.name}': compare them against depth instead."
        )
    x, y, step = grid_axes(rows)
    reach = difference_reach(rows)
    colour = alt.Color(
        "difference:Q",
        scale=alt.Scale(domain=[-reach, reach], range="diverging", clamp=True),
        title=f"difference of {unit_title(card)}",
        legend=alt.Legend(orient="bottom", gradientLength=180, gradientThickness=8),
    )
    tooltip: list[Any] = ["layer:O", "head:O", "first:Q", "second:Q", "difference:Q"]
    base = alt.Chart(rows)
    layers = [
        base.transform_filter("!datum.broken").mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltip)
    ]
    if rows["broken"].any():
        layers.append(
            base.transform_filter("datum.broken")
            .mark_text(style="broken", text="✕", fontSize=min(12, step))
            .encode(x=x, y=y, tooltip=tooltip)
        )
    what = "second minus first" + ("" if part == "value" else f", {part_title(part)}")
    return alt.layer(*layers).properties(
        width=alt.Step(step), height=alt.Step(step), title=chart_title(card, panel, what)
    )


def difference_reach(rows: pd.DataFrame) -> float:
    """The largest change in either direction, and 1 where nothing changed."""
    sizes = rows["difference"].abs().to_numpy(float)
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))) or 1.0
