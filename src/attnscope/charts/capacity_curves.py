"""How wide a head must be, against the number of tokens and against the keys of a row: one line per construction.

    chart = capacity_curves(Capacity.load("capacity.json"), title="float32")

Axes are logarithmic, so a width that grows as a power of k is a straight line and one that does not depend on n is
level. Bounds are dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnscope.core.errors import RefusalError
from attnscope.records.capacity import Capacity

LABELS = {"n": "tokens n", "k": "keys of a row k"}
DASHES = [[6, 3], [2, 3], [8, 2, 2, 2]]


BOUNDS = {"universal": "keys for all patterns", "typical": "most patterns"}


def capacity_curves(
    found: Capacity, *, title: str, subtitle: Sequence[str] = (), width: int = 300, height: int = 260
) -> alt.HConcatChart:
    """Draw both panels, or the one that has a measured width; without a title there is none."""
    measured, proved = pd.DataFrame(need_rows(found)), pd.DataFrame(floor_rows(found))
    if measured.empty:
        raise RefusalError("Nothing was measured, so there is no curve to draw: give it time with --budget.")
    widths = [float(d) for rows in (measured, proved) if len(rows) for d in rows["d"]]
    fixed = {"n": f"k = {found.k}", "k": f"n = {found.against_k[0].n:,}" if found.against_k else ""}
    scale = alt.Scale(type="log", base=2, domain=[max(min(widths) / 1.3, 0.8), max(widths) * 1.3], nice=False)
    panels = [
        _panel(measured, proved, against, scale, fixed[against]).properties(width=width, height=height)
        for against in LABELS
        if (measured["against"] == against).any()
    ]
    chart = alt.hconcat(*panels, spacing=36).resolve_scale(color="shared", strokeDash="shared")
    return chart.properties(title=alt.TitleParams(title, subtitle=list(subtitle), offset=14)) if title else chart


def need_rows(found: Capacity) -> list[dict[str, Any]]:
    """What constructions were measured to need: {against, at, name, d}."""
    return [
        {"against": against, "at": need.n if against == "n" else need.k, "name": need.method, "d": need.d}
        for against, curve in (("n", found.against_n), ("k", found.against_k))
        for need in curve
        if need.d is not None
    ]


def floor_rows(found: Capacity) -> list[dict[str, Any]]:
    """What bounds prove at the same places, measured or not: {against, at, name, d}."""
    rows = []
    for against, curve in (("n", found.against_n), ("k", found.against_k)):
        for n, k in dict.fromkeys((need.n, need.k) for need in curve):
            floor = found.floor(n, k)
            for name, label in BOUNDS.items() if floor else ():
                at = n if against == "n" else k
                rows.append({"against": against, "at": at, "name": label, "d": getattr(floor, name)})
    return rows


def _panel(measured: pd.DataFrame, proved: pd.DataFrame, against: str, scale: alt.Scale, fixed: str) -> alt.LayerChart:
    here = measured[measured["against"] == against]
    floor = proved[proved["against"] == against] if len(proved) else proved
    ticks = sorted({int(at) for rows in (here, floor) if len(rows) for at in rows["at"]})
    x = alt.X(
        "at:Q",
        title=f"{LABELS[against]}{', ' if fixed else ''}{fixed}",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=ticks, format=",d", labelOverlap=True),
    )
    y = alt.Y("d:Q", title="width d", scale=scale, axis=alt.Axis(format=",d", values=_powers(scale)))
    stroke = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=250, titlePadding=6)
    names = list(dict.fromkeys(measured["name"]))
    colour = alt.Color("name:N", scale=alt.Scale(domain=names), title="smallest width found", legend=stroke)
    # Later marks are smaller, so that constructions which need the same are seen as rings around each other. Vega-Lite
    # spreads names evenly between the two ends of a range of sizes.
    size = alt.Size("name:N", scale=alt.Scale(domain=names, range=[20 + 40 * (len(names) - 1), 20]), legend=None)
    tooltip = [alt.Tooltip("name:N"), alt.Tooltip("at:Q", title=against), alt.Tooltip("d:Q", title="width")]
    lines = alt.Chart(here)
    layers = [
        lines.mark_line(style="line").encode(x=x, y=y, color=colour),
        lines.mark_circle(style="reading").encode(x=x, y=y, color=colour, size=size, tooltip=tooltip),
    ]
    if len(floor):
        bounds = list(dict.fromkeys(proved["name"]))
        dash = alt.Scale(domain=bounds, range=DASHES[: len(bounds)])
        layers.insert(
            0,
            alt.Chart(floor)
            .mark_line(style="others", opacity=1, strokeWidth=1.5)
            .encode(
                x=x,
                y=y,
                strokeDash=alt.StrokeDash("name:N", scale=dash, title="lower bound", legend=stroke),
                tooltip=tooltip,
            ),
        )
    return alt.layer(*layers)


def _powers(scale: alt.Scale) -> list[int]:
    """Powers of two in sight, every second where there are many."""
    low, high = scale["domain"]
    powers = [2**e for e in range(31) if low <= 2**e <= high]
    return powers if len(powers) <= 8 else powers[::2]
