"""Charts of a survey: a measure against depth, and an attention measure as a map of blocks by heads.

    chart = depth_profile(survey.table(), survey.cards["relative_residual"], stack="decoder")
    chart = head_grid(survey.table(), survey.cards["sink_mass"], stack="decoder", site="self")

NaN and infinite numbers are crossed out instead of coloured.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.reports.colours import scale
from attnscope.reports.rows import Panel, depth_rows, depth_title, head_rows, panels, part_title, unit_title
from attnscope.reports.theme import SCHEMA

if TYPE_CHECKING:  # plain specifications, because a page draws dozens of them and altair is slow
    import altair as alt

Spec = dict[str, Any]  # part of a Vega-Lite specification


def depth_profile(
    table: pd.DataFrame,
    card: Card,
    *,
    stack: str | None = None,
    site: str | None = None,
    width: int = 340,
    height: int = 150,
) -> alt.LayerChart:
    """Draw one measure of one stack against depth. `stack` and `site` default to the first in the table."""
    import altair

    panel = first_panel(table, card, stack, site)
    document = depth_specification(depth_rows(table, card, panel), card, panel, width=width, height=height)
    spread = "mean and p10 to p90 over " + ("sequences" if panel.site == "stream" else "heads")
    del document["$schema"]  # Altair joins only charts without a schema, and then adds its own
    return altair.LayerChart.from_dict({**document, "title": chart_title(card, panel, spread)})


def depth_specification(
    rows: pd.DataFrame,
    card: Card,
    panel: Panel,
    *,
    width: int,
    height: int,
    usual: tuple[float, float] | None = None,
) -> Spec:
    """Return a chart of the mean as a line, p10 to p90 as a band, and the alarm as a dashed line; `rows` are
    `depth_rows`. `usual` is the range in real models, drawn behind everything.

    Values in the middle of a block (after attention, before the MLP) are drawn half-way between two blocks.
    """
    axis = {"tickMinStep": 1, "tickCount": 8, "labelExpr": depth_label(rows, card, panel)}
    x = _channel("depth", title=depth_title(card, panel), scale={"nice": False, "zero": False, "padding": 6}, axis=axis)
    values = value_scale(rows, card)
    colour = {}
    if rows["part"].nunique() > 1:
        parts = list(dict.fromkeys(rows["part"]))
        colour["color"] = _channel("part", "nominal", sort=parts, title=None, legend={"orient": "top"})
    low = _channel("low", scale=values, title=unit_title(card), axis=value_axis(rows, card))
    mean = _channel("mean", scale=values)
    tooltip = [_channel("depth", title=depth_title(card, panel))] + [
        _channel(name, title=title, format=".4~g")
        for name, title in (("mean", "mean"), ("low", "p10"), ("high", "p90"))
    ]
    sound = {"transform": [{"filter": "isValid(datum.mean)"}]}
    layers: list[Spec] = [
        {
            "mark": {"type": "area", "style": "spread"},
            "encoding": {"x": x, "y": low, "y2": {"field": "high"}, **colour},
        },
        {"mark": {"type": "line", "style": "line"}, "encoding": {"x": x, "y": mean, **colour}},
        {
            "mark": {"type": "circle", "style": "reading", "size": reading_size(rows)},
            "encoding": {
                **{"x": x, "y": mean, "description": _channel("label", "nominal"), "tooltip": tooltip},
                **colour,
            },
        },
    ]
    layers = [{**layer, **sound} for layer in layers]
    if usual is not None and usual[1] > 0:
        # The band is cut at the data, so that a wide range does not flatten the line.
        top = min(usual[1], 1.1 * float(np.nanmax(rows[["high", "mean"]].to_numpy(float), initial=0.0)))
        ends = {"values": [{"low": max(usual[0], _lowest(rows)) if card.log else usual[0], "high": top}]}
        encoding = {"y": _channel("low", scale=values), "y2": {"field": "high"}}
        layers.insert(
            0, {"data": ends, "mark": {"type": "rect", "style": "usual", "aria": False}, "encoding": encoding}
        )
    if card.alarm and _in_sight(rows, card.alarm.threshold):
        rule = {"values": [{"threshold": card.alarm.threshold}]}
        encoding = {"y": _channel("threshold", scale=values)}
        layers.append({"data": rule, "mark": {"type": "rule", "style": "threshold"}, "encoding": encoding})
    if rows["broken"].any():
        cross = {"type": "text", "style": "broken", "text": "✕", "fontSize": 11, "fontWeight": "bold"}
        seen = {"tooltip": [_channel("depth", title="NaN or infinite at block")], "x": x, "y": {"value": height - 8}}
        layers.append({"transform": [{"filter": "datum.broken"}], "mark": cross, "encoding": seen})
    return {
        "$schema": SCHEMA,
        "data": {"values": _records(rows)},
        "layer": layers,
        "width": width,
        "height": height,
    }


def _lowest(rows: pd.DataFrame) -> float:
    """Return the smallest positive mean, where a band on a logarithmic axis may begin."""
    positive = rows["mean"][rows["mean"] > 0]
    return float(positive.min()) if len(positive) else 1e-12


def _channel(field: str, kind: str = "quantitative", **options: Any) -> Spec:
    return {"field": field, "type": kind, **options}


def _records(rows: pd.DataFrame) -> list[Spec]:
    """Return rows for JSON: missing and infinite numbers become None."""
    columns = {
        str(name): [
            None if isinstance(value, float) and not math.isfinite(value) else value for value in column.tolist()
        ]
        for name, column in rows.items()
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def depth_label(rows: pd.DataFrame, card: Card, panel: Panel) -> str:
    """Return the Vega expression for a tick label: the number of the block, or `end` after the last block."""
    whole = "format(datum.value, 'd')"
    if panel.site != "stream" or card.of_block:
        return whole
    return f"datum.value == {float(rows['depth'].max()):g} ? 'end' : {whole}"


def first_panel(table: pd.DataFrame, card: Card, stack: str | None, site: str | None) -> Panel:
    fitting = [
        p for p in panels(table) if p.measure == card.name and stack in (None, p.stack) and site in (None, p.site)
    ]
    if not fitting:
        where = "".join(f" at '{site}'" if site else "") + (f" in stack '{stack}'" if stack else "")
        raise RefusalError(f"The survey has no measure '{card.name}'{where}.")
    return fitting[0]


def chart_title(card: Card, panel: Panel, spread: str) -> Spec:
    attention = "uneven self-attention" if panel.site == "uneven" else f"{panel.site}-attention"
    place = panel.stack if panel.site == "stream" else f"{panel.stack}, {attention}"
    return {"text": card.title, "subtitle": f"{place}: {spread}"}


def value_scale(rows: pd.DataFrame, card: Card) -> Spec:
    """Return the scale of a measure. A linear axis includes zero, so that differences are not exaggerated."""
    if card.log:
        return {"type": "log", "nice": False, "padding": 6}
    numbers = rows[["low", "high", "mean"]].to_numpy(float)
    finite = numbers[np.isfinite(numbers)]
    lowest, highest = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    if np.isfinite(card.high) and highest > 0.5 * card.high:
        return {"domain": [card.low if lowest < 0 else 0.0, card.high], "nice": False}
    return {"zero": True, "nice": True}


def value_axis(rows: pd.DataFrame, card: Card) -> Spec:
    """Return an axis with about four grid lines: even steps, or on a log axis powers of ten (with 2 and 5 if there are
    few).
    """
    numbers = rows[["low", "high", "mean"]].to_numpy(float)
    seen = numbers[np.isfinite(numbers) & (numbers > 0)]
    if not card.log or not seen.size:
        return {"tickCount": 4, "format": ".3~s" if np.max(seen, initial=0.0) >= 1000 else ".6~g"}
    low, high = float(seen.min()), float(seen.max())
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    powers = [10.0**e for e in decades if low <= 10.0**e <= high]
    if len(powers) < 3:
        powers = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    if len(powers) < 3:  # over a small part of a decade a logarithmic axis is nearly linear
        powers = _even(low, high)
    powers = powers[:: max(1, len(powers) // 4)]
    return {"values": powers, "format": ",.7~g" if low > 1e-4 and high < 1e7 else ".0e"}


def _even(low: float, high: float) -> list[float]:
    """Return three to six round numbers between two bounds, or the lower bound if both are equal."""
    if not high > low:
        return [low]
    power = 10.0 ** np.floor(np.log10(high - low))
    step = next(
        m * power for m in (2, 1, 0.5, 0.2, 0.1) if np.floor(high / (m * power)) - np.ceil(low / (m * power)) >= 2
    )
    first, last = int(np.ceil(low / step)), int(np.floor(high / step))
    return [float(f"{n * step:.6g}") for n in range(first, last + 1)]


def reading_size(rows: pd.DataFrame) -> int:
    """Return the size of dots, small enough that they do not touch."""
    depths = rows["depth"].nunique()
    return 24 if depths <= 32 else 10 if depths <= 64 else 4


def _in_sight(rows: pd.DataFrame, threshold: float) -> bool:
    numbers = rows[["low", "high", "mean"]].to_numpy(float)
    finite = numbers[np.isfinite(numbers)]
    return bool(finite.size and finite.min() * 0.5 <= threshold <= finite.max() * 1.5)


LARGEST_SIDE = 640


def head_grid(
    table: pd.DataFrame,
    card: Card,
    *,
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
    bound: float | None = None,
) -> alt.LayerChart:
    """Draw one measure of one stack, one square per head. `part` defaults to the card's first.

    `bound` is the largest possible value at this sequence length, if known.
    """
    import altair as alt

    panel = first_panel(table, card, stack, site)
    part = card.parts[0] if part is None else part
    rows = head_rows(table, panel, part)
    if rows.empty:
        raise RefusalError(f"'{card.name}' has no number per head (part '{part}'): draw it against depth instead.")
    span = scale(rows["mean"].to_numpy(float), card, bound)
    x, y, step = grid_axes(rows)
    colour = alt.Color(
        "mean:Q",
        scale=span.colours(),
        title=unit_title(card),
        legend=alt.Legend(orient="bottom", gradientLength=180, gradientThickness=8),
    )
    tooltip = [
        alt.Tooltip("layer:O", title="block"),
        alt.Tooltip("head:O"),
        alt.Tooltip("mean:Q", title=card.title, format=".4~g"),
        alt.Tooltip("p10:Q", format=".4~g"),
        alt.Tooltip("p90:Q", format=".4~g"),
        alt.Tooltip("nonfinite:Q", title="NaN or infinite"),
    ]
    base = alt.Chart(rows)
    sound = (
        base.transform_filter("!datum.broken")
        .mark_rect()
        .encode(x=x, y=y, color=colour, tooltip=tooltip, description="label:N")
    )
    layers = [sound]
    if rows["broken"].any():
        broken = base.transform_filter("datum.broken")
        layers += [
            broken.mark_rect(style="missing").encode(x=x, y=y, tooltip=tooltip, description="label:N"),
            broken.mark_text(style="broken", text="✕", fontSize=min(12, step)).encode(x=x, y=y),
        ]
    what = "one square per head" if part == "value" else f"{part_title(part)}, one square per head"
    return alt.layer(*layers).properties(
        width=alt.Step(step), height=alt.Step(step), title=chart_title(card, panel, what)
    )


def grid_axes(rows: pd.DataFrame) -> tuple[alt.X, alt.Y, int]:
    """Return the axes of a map and the side of its squares: as large as fits, between 4 and 18 pixels."""
    import altair as alt

    longest = max(rows["head"].nunique(), rows["layer"].nunique())
    step = max(4, min(18, LARGEST_SIDE // longest))
    every = max(1, -(-14 // step))
    sparse = f"datum.value % {every if every == 1 else 5 * -(-every // 5)} == 0"
    label = alt.Axis(labelExpr=f"{sparse} ? datum.label : ''", labelAngle=0, ticks=False, domain=False, grid=False)
    return alt.X("layer:O", title="block", axis=label), alt.Y("head:O", title="head", axis=label), step
