"""Relative residual against depth on a logarithmic axis: one line per variant, its spread as a band.

    chart = collapse_chart(found)                        # found: what `attnscope.collapse` gave
    chart = collapse_chart(found, published=reference)   # the paper's curves dashed beside them
    chart = collapse_chart(found, bounds=True)           # and a panel: one layer's truth and its bounds

Values at or below the floor of rounding rest on it: what is below cannot be told from zero. Published curves are known
to four decimals and end where they reach 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from attnscope.charts.axes import power_axis
from attnscope.core.errors import RefusalError
from attnscope.core.numerals import numeral
from attnscope.records.collapse import Collapse
from attnscope.records.published import Published

ROUNDED = 5e-5  # where a published curve ends
BOUNDS = {  # column of a layer's bounds -> legend
    "after": "truth",
    "contraction": "(a) patterns seen",
    "cubic": "(c) weights alone",
}
PAPER = {"residual_after": "truth", "paper": "theorem 2.2"}


def collapse_chart(
    found: Collapse,
    *,
    published: Published | None = None,
    bounds: bool = False,
    width: int = 440,
    height: int = 300,
    title: bool = True,
) -> alt.TopLevelMixin:
    """`bounds` adds a panel for them, `published` the paper's curves."""
    rows = curve_rows(found)
    if not rows:
        raise RefusalError("There is no finite number to draw: look at the notes of the collapse.")
    theirs = [] if published is None else published_rows(found, published)
    frame = pd.DataFrame(rows)
    main = _curves(found, frame, theirs, log=True).properties(width=width, height=height)
    panels = [main]
    if frame["mean"].min() < 1e-3 * frame["mean"].max():  # lines that stay up cannot be told apart on such an axis
        panels.append(_curves(found, frame, theirs, log=False).properties(width=width * 2 // 3, height=height))
    chart = main if len(panels) == 1 else alt.hconcat(*panels, spacing=36)
    if bounds and found.bounds:
        beside = [_bounds(found, BOUNDS, "diameter of what a layer writes")]
        if any(row.paper is not None for row in found.bounds):
            beside.append(_bounds(found, PAPER, "residual of what a layer writes"))
        below = alt.hconcat(*(b.properties(width=width * 5 // 6, height=height * 2 // 3) for b in beside), spacing=36)
        chart = alt.vconcat(chart, below.resolve_scale(color="independent", strokeDash="independent"), spacing=28)
        chart = chart.resolve_scale(color="independent", strokeDash="independent")
    if not title:
        return chart
    lines = _subtitle(found, published)
    return chart.properties(title=alt.TitleParams(f"What depth leaves of {found.model}", subtitle=lines, offset=12))


def curve_rows(found: Collapse) -> list[dict[str, Any]]:
    """One row per variant and depth that has a number: `variant, depth, mean, low, high, label`."""
    floor = float(found.floor)
    rows = []
    for curve in found.curves.values():
        for depth, (mean, low, high) in enumerate(zip(curve.mean, curve.low, curve.high, strict=True)):
            if math.isfinite(mean):
                spread = f"p10 {numeral(low)}, p90 {numeral(high)}"
                rows.append(
                    {
                        "variant": curve.title,
                        "depth": depth,
                        "mean": max(mean, floor),
                        "low": max(low, floor),
                        "high": max(high, floor),
                        "label": f"{curve.title}, depth {depth}: {numeral(mean)} ({spread})",
                    }
                )
    return rows


def published_rows(found: Collapse, reference: Published) -> list[dict[str, Any]]:
    """Published curves of the variants that are drawn, up to their first 0."""
    rows = []
    for name, values in reference.curves.items():
        if name in found.curves:
            for depth, value in enumerate(values):
                rows.append({"variant": found.curves[name].title, "depth": depth, "published": max(value, ROUNDED)})
                if value <= 0:
                    break
    return rows


def _curves(found: Collapse, frame: pd.DataFrame, theirs: list[dict[str, Any]], *, log: bool) -> alt.LayerChart:
    lowest = min([frame["low"].min(), *(row["published"] for row in theirs)])
    highest = 1.1 * max([1.0, frame["high"].max(), *(row["published"] for row in theirs)])
    x = _depth_axis(int(max([frame["depth"].max(), *(row["depth"] for row in theirs)])), "depth (layers passed)")
    if log:
        domain = [10.0 ** math.floor(math.log10(lowest)), highest]
        axis = alt.Axis(**power_axis(*domain))
        scale = alt.Scale(type="log", domain=domain, nice=False)
    else:
        axis, scale = alt.Axis(tickCount=5), alt.Scale(domain=[0.0, highest], nice=False)
    title = f"relative residual ({found.norm} norm)" if log else "the same, linear"
    names = [curve.title for curve in found.curves.values()]
    # On a log axis a dashed line and a solid one tell theirs from ours in black and white too.
    legend = alt.Legend(orient="right", symbolType="stroke", symbolStrokeWidth=2, symbolSize=250)
    colour = alt.Color("variant:N", scale=alt.Scale(domain=names), sort=names, title=None, legend=legend)
    base = alt.Chart(frame)
    layers: list[Any] = [
        base.mark_area(style="spread").encode(
            x=x, y=alt.Y("low:Q", scale=scale, title=title, axis=axis), y2="high:Q", color=colour
        ),
        base.mark_line(style="line").encode(x=x, y=alt.Y("mean:Q", scale=scale), color=colour),
        base.mark_circle(style="reading", size=26).encode(
            x=x,
            y=alt.Y("mean:Q", scale=scale),
            color=colour,
            description="label:N",
            tooltip=[
                alt.Tooltip("variant:N"),
                alt.Tooltip("depth:Q"),
                alt.Tooltip("mean:Q", format=".4~g"),
                alt.Tooltip("low:Q", title="p10", format=".4~g"),
                alt.Tooltip("high:Q", title="p90", format=".4~g"),
            ],
        ),
    ]
    if theirs:
        layers.append(
            alt.Chart(pd.DataFrame(theirs))
            .mark_line(style="line", strokeDash=[5, 4], strokeWidth=1.4)
            .encode(x=x, y=alt.Y("published:Q", scale=scale), color=colour)
        )
    return alt.layer(*layers)


def _bounds(found: Collapse, names: Mapping[str, str], title: str) -> alt.LayerChart:
    """One layer of attention alone: the truth as a line, bounds above it, down to where rounding begins."""
    rows = [
        {"layer": row.layer, "which": label, "value": max(value, row.rounding, 1e-300)}
        for column, label in names.items()
        for row in found.bounds
        if (value := getattr(row, column)) is not None and math.isfinite(value)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "which", "value"])
    values = frame["value"] if len(frame) else pd.Series([1.0])
    domain = [float(values.min()) / 2, float(values.max()) * 2]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    x = _depth_axis(int(max(row.layer for row in found.bounds)), "layer", "layer")
    y = alt.Y("value:Q", scale=scale, title=title, axis=alt.Axis(**power_axis(*domain)))
    seen = list(dict.fromkeys(frame["which"]))
    dashes = [[1, 0], [5, 4], [2, 3]][: len(seen)]
    legend = alt.Legend(orient="right", symbolType="stroke", symbolStrokeWidth=2, symbolSize=250)
    colour = alt.Color("which:N", sort=seen, scale=alt.Scale(domain=seen), title=None, legend=legend)
    dash = alt.StrokeDash("which:N", sort=seen, scale=alt.Scale(domain=seen, range=dashes), title=None, legend=legend)
    tooltip = [alt.Tooltip("which:N"), alt.Tooltip("layer:Q"), alt.Tooltip("value:Q", format=".3~g")]
    base = alt.Chart(frame)
    return alt.layer(
        base.mark_line(style="line").encode(x=x, y=y, color=colour, strokeDash=dash),
        base.mark_circle(style="reading", size=20).encode(x=x, y=y, color=colour, tooltip=tooltip),
    )


def _depth_axis(last: int, title: str, name: str = "depth") -> alt.X:
    step = max(1, math.ceil(last / 12))
    axis = alt.Axis(values=list(range(0, last + 1, step)), format="d")
    return alt.X(f"{name}:Q", title=title, scale=alt.Scale(domain=[0, max(last, 1)], nice=False, padding=6), axis=axis)


def _subtitle(found: Collapse, published: Published | None) -> list[str]:
    corpus = found.provenance.get("corpus", {})
    count = max(max(curve.n) for curve in found.curves.values())
    lines = [
        f"{corpus.get('name', 'ready batches')}: mean and p10 to p90 over {count} sequences of up to {found.tokens} "
        f"tokens, {found.weights_words}, floor of rounding {numeral(float(found.floor))}"
    ]
    if published is not None:
        lines.append(
            f"dashed: {published.model} as published in arXiv:2103.03404 (other text and seeds, float32; "
            "four decimals, so lines end at 5e-5)"
        )
    return lines
