"""The figure of an experiment, drawn: lines with bands, bars, or tracks of points, in panels where it has several.

chart = experiment_figure(figure)       # figure: attnscope.core.experiment.Figure, plain data

Dashed rows are there to be compared with. Over many powers of ten a difference of a tenth is less than the width of a
line, so a logarithmic figure that has them shows its panels once more on a linear axis.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import altair as alt
import pandas as pd

from attnscope.charts.axes import power_axis, tick_labels
from attnscope.core.errors import RefusalError
from attnscope.core.experiment import Figure

PANEL = 250
Encoding = dict[str, Any]
COLUMNS = {"curves": 3, "bars": 2, "tracks": 4}
FAR = 1e3  # a logarithmic axis this long hides what a linear one shows
DASHES = [5, 3]


def experiment_figure(figure: Figure, *, title: bool = True) -> alt.Chart | alt.LayerChart | alt.ConcatChart:
    """Draw a figure; `title=False` where a page says it in words."""
    rows = _rows(figure)
    if rows.empty:
        raise RefusalError(f"The figure '{figure.name}' has no finite number to draw.")
    names = list(dict.fromkeys(rows["series"]))
    panels = list(dict.fromkeys(rows["panel"]))
    # Panels that share no series have each a legend of their own, so that colours need not be told apart across them.
    apart = len(panels) > 1 and rows.groupby("series")["panel"].nunique().max() == 1
    blocks: list[Any] = []
    for drawn in _axes(rows, figure):
        y_scale, parts = _scale(rows, drawn), []
        for panel in panels:
            some = rows[rows["panel"] == panel]
            own = list(dict.fromkeys(some["series"])) if apart else names
            parts.append(_panel(some, drawn, own, y_scale, str(panel), "bottom" if apart else "right"))
        block = parts[0] if len(parts) == 1 else alt.concat(*parts, columns=COLUMNS[figure.kind], spacing=28)
        blocks.append(block.resolve_scale(color="independent") if apart else block)
    # Both axes of one panel stand side by side; of several, each panel has its own below it.
    chart = blocks[0] if len(blocks) == 1 else alt.concat(*blocks, columns=1 if len(panels) > 1 else 2, spacing=28)
    chart = chart.resolve_scale(color="independent") if apart else chart
    return chart.properties(title=alt.TitleParams(figure.title)) if title else chart


def _axes(rows: pd.DataFrame, figure: Figure) -> list[Figure]:
    """The figure, and where its dashed rows could not be compared on it, the same with a linear axis."""
    if not figure.log or figure.kind != "curves" or not rows["dashed"].any():
        return [figure]
    far = float(rows["y"].max()) > FAR * float(rows["y"].min())
    return [figure, replace(figure, log=False, y=f"{figure.y}, linear")] if far else [figure]


def _rows(figure: Figure) -> pd.DataFrame:
    """Points with a finite y; a band that is not finite is y itself. On a logarithmic axis nothing is below zero."""
    points = [point for point in figure.rows if math.isfinite(point.y)]
    rows = pd.DataFrame([vars(point) for point in points])
    if rows.empty:
        return rows
    rows["low"] = [point.low if math.isfinite(point.low) else point.y for point in points]
    rows["high"] = [point.high if math.isfinite(point.high) else point.y for point in points]
    if figure.log:
        positive = rows.loc[rows["y"] > 0, "y"]
        floor = float(positive.min()) / 3 if len(positive) else 1e-300
        for column in ("y", "low", "high"):
            rows[column] = rows[column].astype(float).clip(lower=floor)
    rows["order"] = range(len(rows))
    return rows


def _scale(rows: pd.DataFrame, figure: Figure) -> alt.Scale:
    """One scale for all panels, so that they can be compared."""
    low, high = float(rows["low"].min()), float(rows["high"].max())
    if figure.log:
        return alt.Scale(type="log", domain=[low / 1.5, high * 1.5], nice=False)
    if figure.kind == "tracks":
        reach = max(abs(low), abs(high), float(rows["x"].abs().max())) * 1.05
        return alt.Scale(domain=[-reach, reach], nice=False)
    zero = figure.kind == "bars" or low < 0.3 * high
    return alt.Scale(zero=zero, domain=[0 if zero and low >= 0 else low, high], nice=True)


def _panel(rows: pd.DataFrame, figure: Figure, names: list[str], y_scale: alt.Scale, title: str, legend: str) -> Any:
    draw = {"curves": _curves, "bars": _bars, "tracks": _tracks}[figure.kind]
    chart = draw(rows, figure, names, y_scale, _colour(names, legend))
    return chart.properties(title=alt.TitleParams(title, fontSize=12, offset=6)) if title else chart


def _colour(names: list[str], legend: str) -> dict[str, Any]:
    if len(names) == 1:
        return {}
    where = alt.Legend(orient="bottom", columns=2, labelLimit=220) if legend == "bottom" else alt.Legend(labelLimit=260)
    return {"color": alt.Color("series:N", sort=names, scale=alt.Scale(domain=names), title=None, legend=where)}


def _axis(rows: pd.DataFrame, figure: Figure, y_scale: alt.Scale) -> alt.Axis:
    if figure.log:
        return alt.Axis(**power_axis(*y_scale["domain"]))
    return alt.Axis(tickCount=6, **tick_labels(rows["high"].astype(float)))


def _curves(
    rows: pd.DataFrame, figure: Figure, names: list[str], y_scale: alt.Scale, colour: Encoding
) -> alt.LayerChart:
    whole = all(float(x).is_integer() for x in rows["x"])
    x = alt.X(
        "x:Q",
        title=figure.x,
        scale=alt.Scale(type="log", base=2 if whole else 10, nice=False)
        if figure.log_x
        else alt.Scale(zero=False, nice=False, padding=6),
        axis=alt.Axis(tickMinStep=1 if whole else 0, tickCount=8, labelOverlap=True, format="~g"),
    )
    y = alt.Y("y:Q", title=figure.y, scale=y_scale, axis=_axis(rows, figure, y_scale))
    base = alt.Chart(rows)
    solid, dashed = base.transform_filter("!datum.dashed"), base.transform_filter("datum.dashed")
    banded = base.transform_filter("!datum.dashed || datum.low < datum.high")  # a row without one would tear the band
    tooltip = [alt.Tooltip("series:N"), alt.Tooltip("x:Q", title=figure.x), alt.Tooltip("y:Q", title=figure.y)]
    layers = [
        banded.mark_area(style="spread").encode(
            x=x, y=alt.Y("low:Q", scale=y_scale, title=figure.y), y2="high:Q", **colour
        ),
        solid.mark_line(style="line").encode(x=x, y=y, **colour),
        solid.mark_circle(style="reading", size=26).encode(x=x, y=y, tooltip=tooltip, **colour),
    ]
    if rows["dashed"].any():
        layers.append(dashed.mark_line(strokeDash=DASHES, strokeWidth=2.2).encode(x=x, y=y, **colour))
        # A dashed line on the full one of its own colour is seen by its marks alone.
        twin = rows["dashed"] & rows["series"].isin(rows.loc[~rows["dashed"], "series"])
        if twin.any():
            marks = alt.Chart(rows[twin]).mark_point(shape="diamond", size=44, strokeWidth=1.4, style="hollow")
            layers.append(marks.encode(x=x, y=y, tooltip=tooltip, **colour))
    return alt.layer(*layers).properties(width=PANEL, height=190)


def _bars(rows: pd.DataFrame, figure: Figure, names: list[str], y_scale: alt.Scale, colour: Encoding) -> alt.LayerChart:
    order = list(dict.fromkeys(rows["x"]))
    x = alt.X("x:N", sort=order, title=figure.x, axis=alt.Axis(labelAngle=-40 if len(order) > 5 else 0, labelLimit=160))
    y = alt.Y("y:Q", title=figure.y, scale=y_scale, axis=_axis(rows, figure, y_scale))
    beside: dict[str, Any] = {"xOffset": alt.XOffset("series:N", sort=names)} if len(names) > 1 else {}
    base = alt.Chart(rows).transform_calculate(floor=str(y_scale["domain"][0]))
    return alt.layer(
        base.mark_bar(opacity=0.85).encode(x=x, y=y, y2="floor:Q", **beside, **colour),
        base.mark_rule(style="number", strokeWidth=1.5).encode(
            x=x, y=alt.Y("low:Q", scale=y_scale, title=figure.y), y2="high:Q", **beside
        ),
    ).properties(width=max(PANEL, 34 * len(order) * max(1, len(names) // 2)), height=220)


def _tracks(
    rows: pd.DataFrame, figure: Figure, names: list[str], y_scale: alt.Scale, colour: Encoding
) -> alt.LayerChart:
    axis = alt.Axis(tickCount=4)
    x = alt.X("x:Q", title=figure.x, scale=alt.Scale(domain=y_scale["domain"], nice=False), axis=axis)
    y = alt.Y("y:Q", title=figure.y, scale=y_scale, axis=axis)
    base = alt.Chart(rows)
    solid, dashed = base.transform_filter("!datum.dashed"), base.transform_filter("datum.dashed")
    line = {"x": x, "y": y, "order": alt.Order("order:Q"), **colour}
    first = rows[~rows["dashed"]].groupby("series", sort=False).head(1)
    last = rows[~rows["dashed"]].groupby("series", sort=False).tail(1)
    return alt.layer(
        dashed.mark_line(strokeDash=[2, 3], strokeWidth=1, clip=True).encode(**line),
        solid.mark_line(style="line", clip=True).encode(**line),
        alt.Chart(first).mark_point(size=30, clip=True).encode(x=x, y=y, **colour),
        alt.Chart(last).mark_circle(size=70, opacity=1, clip=True).encode(x=x, y=y, **colour),
    ).properties(width=190, height=190)
