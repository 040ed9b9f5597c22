"""A map of the width that each head's patterns need: blocks by heads, ✕ where no width was found."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.head_widths.record import HeadWidths
from attnscope.commands.head_widths.words import about
from attnscope.reports.survey_charts import grid_axes

AROUND = 80  # pixels: axis, title and margin of a map, on both sides


def chart(found: HeadWidths) -> Any:
    """Return the map under a title, with what a page says around it."""
    title = alt.TitleParams("How wide must these heads be?", subtitle=list(about(found)), offset=14)
    return head_width_map(found).properties(title=title)


def head_width_map(found: HeadWidths, *, width: int | None = None) -> alt.VConcatChart:
    """Draw one map for each stack, with squares of one size, or as wide as `width` pixels allow."""
    table = found.table()
    table["needs"] = table["needs"].astype(float)
    table["label"] = [
        f"block {head.layer}, head {head.head}: "
        + ("no width found" if head.needs is None else f"width {head.needs} of {head.head_dim}")
        for head in found.heads
    ]
    highest = max(head.needs or 1 for head in found.heads)
    return alt.vconcat(*(_stack_map(rows, stack, highest, width) for stack, rows in table.groupby("stack", sort=False)))


def _stack_map(rows: pd.DataFrame, stack: object, highest: int, width: int | None) -> alt.LayerChart:
    x, y, step = grid_axes(rows)
    tooltip = [
        alt.Tooltip("layer:O", title="block"),
        alt.Tooltip("head:O"),
        alt.Tooltip("needs:Q", title="width found"),
        alt.Tooltip("head_dim:Q", title="width it has"),
        alt.Tooltip("proved:Q", title="proved from below"),
        alt.Tooltip("held:Q", title="attention of the keys kept", format=".0%"),
    ]
    colour = alt.Color(
        "needs:Q",
        scale=alt.Scale(domain=[1, max(highest, 2)], range="heatmap", nice=False),
        title="width found",
        legend=alt.Legend(orient="bottom", gradientLength=180, gradientThickness=8),
    )
    base = alt.Chart(rows)
    known = base.transform_filter("isValid(datum.needs)")
    unknown = base.transform_filter("!isValid(datum.needs)")
    return alt.layer(
        known.mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltip, description="label:N"),
        unknown.mark_text(style="broken", text="✕", fontSize=min(12, step)).encode(x=x, y=y, description="label:N"),
    ).properties(
        width=alt.Step(step) if width is None else width - AROUND,
        height=alt.Step(step),
        title=f"{stack}: width found for each head",
    )
