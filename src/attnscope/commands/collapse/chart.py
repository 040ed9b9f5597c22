"""Charts of a collapse: relative residual against depth, one line per variant, and bounds beside measured values.

    chart(found, published="BERT")       # the paper's curves dashed
    chart(found, bounds=True)            # with bounds of single blocks below
    curves_chart(found, 1080)            # the curves alone, 1080 pixels wide

Values below the rounding floor are drawn at the floor, because they cannot be distinguished from zero. Published curves
have four decimals and end where they reach 0.
"""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.collapse.bounds_words import Bounded, bounded
from attnscope.commands.collapse.grades import place_words
from attnscope.commands.collapse.record import ROUNDED, Collapse, Published
from attnscope.commands.collapse.record import published as published_curves
from attnscope.commands.collapse.words import far
from attnscope.core.errors import RefusalError
from attnscope.core.words import count, numeral
from attnscope.reports.theme import end_labels, label_room, power_axis, round_below

NARROW = 480  # pixels; narrower charts have no room for names beside their lines
AXIS = 62  # pixels of the vertical axis with its title
BOUNDS: dict[str, dict[str, str]] = {  # bounded quantity -> column of a block's bounds -> name of the column
    "diameter": {
        "after": "measured",
        "contraction": "bound from the patterns seen",
        "cubic": "bound from weights alone",
    },
    "residual": {"residual_after": "measured", "paper": "the paper's theorem 2.2"},
}


def collapse_chart(
    record: Collapse, *, published: Published | None = None, bounds: bool = False, width: int = 720, title: bool = True
) -> alt.VConcatChart:
    """Draw one chart for files and notebooks, optionally with the paper's curves and with panels of bounds."""
    panels: list[Any] = [curves_chart(record, width, published=published)]
    if far(record):
        panels.append(curves_chart(record, width, published=published, log=False))
    panels += [bounds_chart(record, of, width) for of in bounded(record)] if bounds else []
    chart = alt.vconcat(*panels, spacing=24).resolve_scale(color="independent", strokeDash="independent")
    if not title:
        return chart
    lines = _subtitle(record, published)
    return chart.properties(title=alt.TitleParams(f"What depth leaves of {record.model}", subtitle=lines, offset=12))


def curves_chart(
    record: Collapse, width: int, *, published: Published | None = None, log: bool = True
) -> alt.LayerChart:
    """Draw the curves. `width` is in pixels and includes axes and names.

    Names are at the ends of lines, or above the chart if it is narrow.
    """
    rows = curve_rows(record)
    if not rows:
        raise RefusalError("There is no finite number to draw: read the notes of this collapse.")
    theirs = [] if published is None else published_rows(record, published)
    numbers = [row[column] for row in rows for column in ("low", "high")] + [row["published"] for row in theirs]
    highest, height = 1.1 * max(1.0, *numbers), 300 if log else 220
    decades = math.log10(highest / min(numbers))
    domain = (round_below(min(numbers), decades) if log else 0.0, highest)
    scale = alt.Scale(type="log" if log else "linear", domain=list(domain), nice=False)
    axis = alt.Axis(**power_axis(*domain)) if log else alt.Axis(tickCount=5)
    last = max(row["depth"] for row in [*rows, *theirs])
    x = _depth_axis(last, record.layers, width)
    title = f"relative residual ({record.norm} norm){'' if log else ', linear'}"
    y = alt.Y("mean:Q", scale=scale, title=title, axis=axis)
    colour, room = _colour("variant", [curve.title for curve in record.curves.values()], width)
    base = alt.Chart(pd.DataFrame(rows))
    layers: list[Any] = [
        base.mark_area(style="spread").encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour),
        base.mark_line(style="line").encode(x=x, y=y, color=colour),
        base.mark_circle(style="reading", size=_dots(last)).encode(
            x=x,
            y=alt.Y("mean:Q", scale=scale),
            color=colour,
            description="label:N",
            tooltip=[alt.Tooltip("label:N", title=" ")],
        ),
    ]
    if theirs:
        dashed = alt.Chart(pd.DataFrame(theirs)).encode(x=x, y=alt.Y("published:Q", scale=scale), color=colour)
        layers += [
            dashed.mark_line(style="line", strokeDash=[5, 4], strokeWidth=1.4),
            dashed.mark_point(style="hollow", shape="diamond", size=18, strokeWidth=1.2).encode(
                description="label:N", tooltip=[alt.Tooltip("label:N", title=" ")]
            ),
        ]
    if room:
        ends = {row["variant"]: (row["depth"], row["mean"]) for row in rows}
        rows = end_labels(ends, log=log, domain=domain, height=height)
        layers.append(_names(rows, x, "depth", scale, colour))
    return alt.layer(*layers).properties(width=width - AXIS - room, height=height)


def bounds_chart(record: Collapse, of: Bounded, width: int) -> alt.LayerChart:
    """Draw the measured value after one block of attention alone, and its bounds."""
    rows = bound_rows(record, of)
    values = [row["value"] for row in rows] or [1.0]
    domain, height = (min(values) / 2, max(values) * 2), 240
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    last = max(row.layer for row in record.bounds)
    axis = alt.Axis(values=_ticks(last, width), format="d")
    x = alt.X("block:Q", title="block", scale=alt.Scale(domain=[0, max(last, 1)], nice=False, padding=6), axis=axis)
    y = alt.Y("value:Q", scale=scale, title=f"{of} of what a block writes", axis=alt.Axis(**power_axis(*domain)))
    names = list(dict.fromkeys(row["which"] for row in rows))
    colour, room = _colour("which", names, width)
    dashes = alt.Scale(domain=names, range=[[1, 0], [5, 4], [2, 3]][: len(names)])
    base = alt.Chart(pd.DataFrame(rows, columns=["block", "which", "value", "label"]))
    layers: list[Any] = [
        base.mark_line(style="line").encode(
            x=x, y=y, color=colour, strokeDash=alt.StrokeDash("which:N", scale=dashes, legend=None)
        ),
        base.mark_circle(style="reading", size=_dots(last)).encode(
            x=x, y=y, color=colour, description="label:N", tooltip=[alt.Tooltip("label:N", title=" ")]
        ),
    ]
    if room:
        ends = {row["which"]: (row["block"], row["value"]) for row in rows}
        rows = end_labels(ends, log=True, domain=domain, height=height)
        layers.append(_names(rows, x, "block", scale, colour))
    return alt.layer(*layers).properties(width=width - AXIS - room, height=height)


def curve_rows(record: Collapse) -> list[dict[str, Any]]:
    """Return one row for each variant and depth with a finite mean: `variant, depth, mean, low, high, label`."""
    floor = float(record.floor)
    rows = []
    for curve in record.curves.values():
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
                        "label": f"{curve.title}, {place_words(depth, record.layers)}: {numeral(mean)} ({spread})",
                    }
                )
    return rows


def published_rows(record: Collapse, reference: Published) -> list[dict[str, Any]]:
    """Return the published curves of the drawn variants, each up to its first 0."""
    rows = []
    for name, values in reference.curves.items():
        if name in record.curves:
            title = record.curves[name].title
            for depth, value in enumerate(values):
                said = numeral(value) if value > 0 else f"below {numeral(ROUNDED)}"
                label = f"{reference.model} as published, {title}, {place_words(depth, len(values) - 1)}: {said}"
                rows.append({"variant": title, "depth": depth, "published": max(value, ROUNDED), "label": label})
                if value <= 0:
                    break
    return rows


def bound_rows(record: Collapse, of: Bounded) -> list[dict[str, Any]]:
    """Return one row for each block and finite bound: `block, which, value, label`."""
    return [
        {
            "block": row.layer,
            "which": name,
            "value": max(value, row.rounding, 1e-300),
            "label": f"{name}, block {row.layer}: {numeral(value)}",
        }
        for column, name in BOUNDS[of].items()
        for row in record.bounds
        if (value := getattr(row, column)) is not None and math.isfinite(value)
    ]


def _colour(field: str, names: list[str], width: int) -> tuple[alt.Color, int]:
    """Return the colours of lines, and the pixels for names beside them (0 if a legend is above the chart)."""
    beside = width >= NARROW
    columns = max(1, (width - AXIS) // (label_room(names) + 12))
    above = alt.Legend(orient="top", columns=columns, symbolType="stroke", symbolStrokeWidth=2, symbolSize=150)
    colour = alt.Color(
        f"{field}:N", scale=alt.Scale(domain=names), sort=names, title=None, legend=None if beside else above
    )
    return colour, label_room(names) if beside else 0


def _names(rows: list[dict[str, Any]], x: alt.X, column: str, scale: alt.Scale, colour: alt.Color) -> alt.Chart:
    """Draw the names of lines at their ends, in the colours of the lines."""
    field = colour["shorthand"].removesuffix(":N")
    frame = pd.DataFrame([{field: row["name"], column: row["x"], "place": row["y"]} for row in rows])
    return (
        alt.Chart(frame)
        .mark_text(align="left", baseline="middle", dx=9, fontSize=11)
        .encode(x=x, y=alt.Y("place:Q", scale=scale), text=f"{field}:N", color=colour)
    )


def _depth_axis(last: int, blocks: int, width: int) -> alt.X:
    """Return an axis with a tick for each block and `end` after the last one."""
    values = _ticks(last, width)
    label = f"datum.value == {blocks} ? 'end' : format(datum.value, 'd')"
    axis = alt.Axis(values=values, labelExpr=label)
    domain = alt.Scale(domain=[0, max(last, 1)], nice=False, padding=6)
    return alt.X("depth:Q", title="entering block", scale=domain, axis=axis)


def _ticks(last: int, width: int) -> list[int]:
    """Return whole numbers from 0 to `last`, with room for their labels. `last` always has a tick."""
    step = max(1, math.ceil(last * 40 / max(width - AXIS, 40)))
    return [n for n in range(0, last, step) if last - n >= 0.7 * step] + [last]


def _dots(last: int) -> int:
    """Return the size of dots: smaller if they would touch."""
    return 40 if last <= 24 else 20


def _subtitle(record: Collapse, published: Published | None) -> list[str]:
    corpus = record.provenance.get("corpus", {})
    over = count(max(max(curve.n) for curve in record.curves.values()), "sequence")
    lines = [
        f"{corpus.get('name', 'ready batches')}: mean and p10 to p90 over {over} of up to {record.tokens} "
        f"tokens, {record.weights_words}, rounding below {numeral(float(record.floor))}"
    ]
    if published is not None:
        lines.append(
            f"dashed: {published.model} as published in arXiv:2103.03404 (other text and seeds, float32; "
            "four decimals, so lines end at 5e-5)"
        )
    return lines


def chart(record: Collapse, *, published: str | None = None, bounds: bool = False) -> Any:
    """Draw the chart. `published` names a model of the paper (BERT, Albert, XLNet); `bounds` adds panels below."""
    theirs = None if published is None else published_curves(published, record.weights)
    return collapse_chart(record, published=theirs, bounds=bounds)
