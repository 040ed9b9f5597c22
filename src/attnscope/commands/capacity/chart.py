"""Charts of a capacity: width against the number of tokens n and of keys per row k, with one line per construction.

Axes are logarithmic, so a power law is a straight line. Bounds are dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.capacity.record import Capacity
from attnscope.commands.capacity.words import seed_words
from attnscope.core.errors import RefusalError

LABELS = {"n": "tokens n", "k": "keys of a row k"}
DASHES = [[6, 3], [2, 3], [8, 2, 2, 2]]
NARROW = 480  # pixels; panels of narrower charts are stacked
AXIS, LEGEND, SPACING = 52, 160, 36  # pixels
BOUNDS = {"universal": "keys for all patterns", "typical": "most patterns"}


def capacity_curves(
    record: Capacity, *, title: str = "", subtitle: Sequence[str] = (), width: int = 860, height: int = 260
) -> alt.HConcatChart | alt.VConcatChart:
    """Draw both panels, or only the one with measured widths. `width` is the width of the whole chart in pixels.

    In a narrow chart the panels are stacked, with the legend above them.
    """
    measured, proved = pd.DataFrame(need_rows(record)), pd.DataFrame(floor_rows(record))
    if measured.empty:
        raise RefusalError("No width was measured, so there is no curve to draw: allow more time with `budget=`.")
    widths = [float(d) for rows in (measured, proved) if len(rows) for d in rows["d"]]
    fixed = {"n": f"k = {record.k}", "k": f"n = {record.against_k[0].n:,}" if record.against_k else ""}
    scale = alt.Scale(type="log", base=2, domain=[max(min(widths) / 1.3, 0.8), max(widths) * 1.3], nice=False)
    drawn = [against for against in LABELS if (measured["against"] == against).any()]
    beside = width >= NARROW
    room = width - LEGEND - SPACING * (len(drawn) - 1) if beside else width
    panels = [
        _panel(measured, proved, against, scale, fixed[against], beside).properties(
            width=room // (len(drawn) if beside else 1) - AXIS, height=height
        )
        for against in drawn
    ]
    together = alt.hconcat(*panels, spacing=SPACING) if beside else alt.vconcat(*panels, spacing=SPACING)
    chart = together.resolve_scale(color="shared", strokeDash="shared")
    return chart.properties(title=alt.TitleParams(title, subtitle=list(subtitle), offset=14)) if title else chart


def need_rows(record: Capacity) -> list[dict[str, Any]]:
    """Return the measured width of each construction: {against, at, name, d, label}."""
    return [
        {
            "against": against,
            "at": need.n if against == "n" else need.k,
            "name": need.method,
            "d": need.d,
            "label": f"{need.method}, n = {need.n:,}, k = {need.k:,}: width {need.d:,}",
        }
        for against, curve in (("n", record.against_n), ("k", record.against_k))
        for need in curve
        if need.d is not None
    ]


def floor_rows(record: Capacity) -> list[dict[str, Any]]:
    """Return the proved bounds at every point of the curves: {against, at, name, d, label}."""
    rows = []
    for against, curve in (("n", record.against_n), ("k", record.against_k)):
        for n, k in dict.fromkeys((need.n, need.k) for need in curve):
            floor = record.floor(n, k)
            for name, label in BOUNDS.items() if floor else ():
                d = getattr(floor, name)
                said = f"lower bound for {label}, n = {n:,}, k = {k:,}: width {d:,}"
                rows.append(
                    {"against": against, "at": n if against == "n" else k, "name": label, "d": d, "label": said}
                )
    return rows


def _panel(
    measured: pd.DataFrame, proved: pd.DataFrame, against: str, scale: alt.Scale, fixed: str, beside: bool
) -> alt.LayerChart:
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
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolSize": 250, "titlePadding": 6, "columns": 1}
    # In a narrow chart legends are above and below the panels.
    constructions = alt.Legend(orient="right" if beside else "top", direction="vertical", **stroke)
    floors = alt.Legend(orient="right" if beside else "bottom", direction="vertical", **stroke)
    names = list(dict.fromkeys(measured["name"]))
    colour = alt.Color("name:N", scale=alt.Scale(domain=names), title="smallest width found", legend=constructions)
    # Later marks are smaller, so that equal widths of several constructions are visible as rings. Vega-Lite spreads
    # names evenly between the two ends of a range of sizes.
    here = here.assign(ring=[names.index(name) for name in here["name"]])
    rings = alt.Scale(domain=list(range(len(names))), range=[20 + 40 * (len(names) - 1), 20])
    size = alt.Size("ring:O", scale=rings, legend=None)
    tooltip = [alt.Tooltip("label:N", title=" ")]
    lines = alt.Chart(here)
    layers = [
        lines.mark_line(style="line").encode(x=x, y=y, color=colour),
        lines.mark_circle(style="reading").encode(
            x=x, y=y, color=colour, size=size, description="label:N", tooltip=tooltip
        ),
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
                strokeDash=alt.StrokeDash("name:N", scale=dash, title="lower bound", legend=floors),
            ),
        )
        # Dots for tooltips, small enough that the line still looks dashed.
        layers.append(
            alt.Chart(floor)
            .mark_circle(style="others", opacity=1, size=12)
            .encode(x=x, y=y, description="label:N", tooltip=tooltip)
        )
    return alt.layer(*layers)


def _powers(scale: alt.Scale) -> list[int]:
    """Return the visible powers of two; every second one if there are many."""
    low, high = scale["domain"]
    powers = [2**e for e in range(31) if low <= 2**e <= high]
    return powers if len(powers) <= 8 else powers[::2]


def chart(record: Capacity) -> Any:
    """Draw the curves with a title and a subtitle."""
    subtitle = (
        f"{record.dtype}, worst row: ratio error {record.ratio_error:g}, leak {record.leak:g}; "
        f"unions of k random permutations, median over {seed_words(record)}",
        f"not shown, far above: the theorem of arXiv:2106.03764 asks for width {record.theorem_width:,} "
        f"at n = {record.n:,}, k = {record.k}",
    )
    return capacity_curves(record, title="How wide must a head be?", subtitle=subtitle)
