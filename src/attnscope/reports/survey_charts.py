"""One attention measure as a map, blocks from left to right and heads from top to bottom, so that depth
runs as it does in the profiles. NaN cells are crossed out, never coloured.

    chart = head_grid(survey.table(), survey.cards["sink_mass"], stack="decoder", site="self")
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.reports.colours import scale
from attnscope.reports.rows import Panel, depth_rows, depth_title, head_rows, panels, part_title, unit_title

# A measure against depth: the mean as a line, p10 to p90 as a band, the alarm as a dashed rule.
#
#     chart = depth_profile(survey.table(), survey.cards["relative_residual"], stack="decoder")
#
# Places inside a block (after the attention write, before the MLP's) stand half-way between two layers. Layers
# with NaN or infinite numbers are crossed out.


def depth_profile(
    table: pd.DataFrame,
    card: Card,
    *,
    stack: str | None = None,
    site: str | None = None,
    width: int = 340,
    height: int = 150,
    title: bool = True,
) -> alt.LayerChart:
    """Draw one measure of one stack. Without `stack` or `site`, the first that the table has."""
    panel = first_panel(table, card, stack, site)
    rows = depth_rows(table, card, panel)
    several = rows["part"].nunique() > 1
    x = alt.X(
        "depth:Q",
        title=depth_title(card, panel),
        scale=alt.Scale(nice=False, zero=False, padding=6),
        axis=alt.Axis(tickMinStep=1, tickCount=8, labelExpr=depth_label(rows, card, panel)),
    )
    y_scale = value_scale(rows, card)
    y_title = unit_title(card)
    colour: dict[str, Any] = {}
    if several:
        parts = list(dict.fromkeys(rows["part"]))
        colour["color"] = alt.Color("part:N", sort=parts, title=None, legend=alt.Legend(orient="top"))
    base = alt.Chart(rows)
    sound = base.transform_filter("isValid(datum.mean)")
    layers: list[Any] = [
        sound.mark_area(style="spread").encode(
            x=x,
            y=alt.Y("low:Q", scale=y_scale, title=y_title, axis=value_axis(rows, card)),
            y2="high:Q",
            **colour,
        ),
        sound.mark_line(style="line").encode(x=x, y=alt.Y("mean:Q", scale=y_scale), **colour),
        sound.mark_circle(style="reading", size=reading_size(rows)).encode(
            x=x,
            y=alt.Y("mean:Q", scale=y_scale),
            description="label:N",
            tooltip=[
                alt.Tooltip("depth:Q", title=depth_title(card, panel)),
                alt.Tooltip("mean:Q", format=".4~g"),
                alt.Tooltip("low:Q", title="p10", format=".4~g"),
                alt.Tooltip("high:Q", title="p90", format=".4~g"),
            ],
            **colour,
        ),
    ]
    if card.alarm and _in_sight(rows, card.alarm.threshold):
        rule = alt.Chart(pd.DataFrame({"threshold": [card.alarm.threshold]}))
        layers.append(rule.mark_rule(style="threshold").encode(y=alt.Y("threshold:Q", scale=y_scale)))
    if rows["broken"].any():
        layers.append(
            base.transform_filter("datum.broken")
            .mark_text(style="broken", text="✕", fontSize=11, fontWeight="bold")
            .encode(
                x=x,
                y=alt.value(height - 8),
                tooltip=[alt.Tooltip("depth:Q", title="NaN or infinite at block")],
            )
        )
    chart = alt.layer(*layers).properties(width=width, height=height)
    return chart.properties(title=chart_title(card, panel, _spread(panel))) if title else chart


def depth_label(rows: pd.DataFrame, card: Card, panel: Panel) -> str:
    """Vega's expression for a tick: the number of the block, and `end` where the stream leaves the last one."""
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


def chart_title(card: Card, panel: Panel, spread: str) -> alt.TitleParams:
    attention = "uneven self-attention" if panel.site == "uneven" else f"{panel.site}-attention"
    place = panel.stack if panel.site == "stream" else f"{panel.stack}, {attention}"
    return alt.TitleParams(card.title, subtitle=f"{place}: {spread}")


def value_scale(rows: pd.DataFrame, card: Card) -> alt.Scale:
    """Zero is in sight on a linear axis: a decline must look as large as it is."""
    if card.log:
        return alt.Scale(type="log", nice=False, padding=6)
    numbers = rows[["low", "high", "mean"]].to_numpy(float)
    finite = numbers[np.isfinite(numbers)]
    lowest, highest = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    if np.isfinite(card.high) and highest > 0.5 * card.high:
        return alt.Scale(domain=[card.low if lowest < 0 else 0.0, card.high], nice=False)
    return alt.Scale(zero=True, nice=True)


def value_axis(rows: pd.DataFrame, card: Card) -> alt.Axis:
    """About four lines; on a logarithmic axis powers of ten, with 1, 2, 5 where these are few, or even steps."""
    numbers = rows[["low", "high", "mean"]].to_numpy(float)
    seen = numbers[np.isfinite(numbers) & (numbers > 0)]
    if not card.log or not seen.size:
        return alt.Axis(tickCount=4, format=".3~s" if np.max(seen, initial=0.0) >= 1000 else ".6~g")
    low, high = float(seen.min()), float(seen.max())
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    powers = [10.0**e for e in decades if low <= 10.0**e <= high]
    if len(powers) < 3:
        powers = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    if len(powers) < 3:  # within a small part of a decade a logarithmic axis is nearly an even one
        powers = _even(low, high)
    powers = powers[:: max(1, len(powers) // 4)]
    return alt.Axis(values=powers, format=",.7~g" if low > 1e-4 and high < 1e7 else ".0e")


def _even(low: float, high: float) -> list[float]:
    """Three to six round numbers between two others; the lower one alone where they are the same."""
    if not high > low:
        return [low]
    power = 10.0 ** np.floor(np.log10(high - low))
    step = next(
        m * power for m in (2, 1, 0.5, 0.2, 0.1) if np.floor(high / (m * power)) - np.ceil(low / (m * power)) >= 2
    )
    first, last = int(np.ceil(low / step)), int(np.floor(high / step))
    return [float(f"{n * step:.6g}") for n in range(first, last + 1)]


def reading_size(rows: pd.DataFrame) -> int:
    """Dots shrink where they would touch."""
    depths = rows["depth"].nunique()
    return 24 if depths <= 32 else 10 if depths <= 64 else 4


def _spread(panel: Panel) -> str:
    return "mean and p10 to p90 over " + ("sequences" if panel.site == "stream" else "heads")


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
    """Draw one measure of one stack, a square per head. Without `part`, the card's first.

    `bound` is the most that is possible at the length of the sequences, where that is known.
    """
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
    """Axes of a map, and the side of its squares: as large as fits, between 4 and 18 pixels."""
    longest = max(rows["head"].nunique(), rows["layer"].nunique())
    step = max(4, min(18, LARGEST_SIDE // longest))
    every = max(1, -(-14 // step))
    sparse = f"datum.value % {every if every == 1 else 5 * -(-every // 5)} == 0"
    label = alt.Axis(labelExpr=f"{sparse} ? datum.label : ''", labelAngle=0, ticks=False, domain=False, grid=False)
    return alt.X("layer:O", title="block", axis=label), alt.Y("head:O", title="head", axis=label), step
