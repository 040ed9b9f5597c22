"""A map of the width that the patterns of each head need: blocks by heads, with ✕ if no width was found."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.head_widths.record import HeadWidths
from attnscope.commands.head_widths.words import about
from attnscope.core.errors import RefusalError
from attnscope.reports.survey_charts import grid_axes

AROUND = 80  # pixels: axis, title and margin of a map, on both sides


def chart(record: HeadWidths) -> Any:
    """Draw the map with a title and a subtitle."""
    title = alt.TitleParams("How wide must these heads be?", subtitle=list(about(record)), offset=14)
    return head_width_map(record).properties(title=title)


def head_width_map(record: HeadWidths, *, width: int | None = None) -> alt.VConcatChart:
    """Draw one map for each stack, with square cells, or as wide as `width` pixels allow."""
    if not record.heads:
        raise RefusalError(f"The record of {record.model} has no heads to draw: measure a model that has some.")
    table = record.table()
    table["needs"] = table["needs"].astype(float)
    table["label"] = [
        f"block {head.layer}, head {head.head}: "
        + ("no width found" if head.needs is None else f"width {head.needs} of {head.head_dim}")
        for head in record.heads
    ]
    highest = max(head.needs or 1 for head in record.heads)
    return alt.vconcat(*(_stack_map(rows, stack, highest, width) for stack, rows in table.groupby("stack", sort=False)))


def _stack_map(rows: pd.DataFrame, stack: object, highest: int, width: int | None) -> alt.LayerChart:
    x, y, step = grid_axes(rows)
    tooltip = [
        alt.Tooltip("layer:O", title="block"),
        alt.Tooltip("head:O"),
        alt.Tooltip("needs:Q", title="width found"),
        alt.Tooltip("head_dim:Q", title="width it has"),
        alt.Tooltip("proved:Q", title="proved at least"),
        alt.Tooltip("held:Q", title="attention of these keys", format=".0%"),
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
