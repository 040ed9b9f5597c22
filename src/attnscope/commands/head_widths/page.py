"""The page of a model's head widths: the answer, a map of all heads, and every number; one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.head_widths.record import HeadWidths
from attnscope.commands.head_widths.words import accuracy_words, head_lines, sentences, title_words, verdict
from attnscope.reports.document import rows
from attnscope.reports.export import drawn_to_fit
from attnscope.reports.page import page
from attnscope.reports.survey_charts import grid_axes

# The width that each head's patterns need, blocks from left to right and heads from top to bottom; crossed out where
# none was found.
#
#     chart = head_width_map(found, title="pocket")

AROUND = 80  # pixels: axis, title and margin of a map, on both sides


def head_width_map(
    found: HeadWidths, *, title: str = "", subtitle: Sequence[str] = (), width: int | None = None
) -> alt.VConcatChart:
    """One map for each stack, squares of one size, or as wide as `width` pixels allow."""
    table = found.table()
    table["needs"] = table["needs"].astype(float)
    table["label"] = [
        f"block {one.layer}, head {one.head}: "
        + ("no width found" if one.needs is None else f"width {one.needs} of {one.head_dim}")
        for one in found.heads
    ]
    highest = max([one.needs or 1 for one in found.heads])
    maps = [_one(rows, stack, highest, width) for stack, rows in table.groupby("stack", sort=False)]
    chart = alt.vconcat(*maps)
    return chart.properties(title=alt.TitleParams(title, subtitle=list(subtitle), offset=14)) if title else chart


def _one(rows: pd.DataFrame, stack: object, highest: int, width: int | None) -> alt.LayerChart:
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


# The picture of a model's head widths.


def chart(found: HeadWidths) -> Any:
    """With a title and what a page says in words around it."""
    subtitle = (title_words(found), accuracy_words(found))
    return head_width_map(found, title="How wide must these heads be?", subtitle=subtitle)


def render(found: HeadWidths) -> str:
    """The page as text."""
    figures = [
        drawn_to_fit(
            lambda width: head_width_map(found, width=width),
            "head_widths",
            title="Width found for what each head attends to",
            caption=f"{title_words(found)}. The widest of the texts counts; ✕ where none was found in the time given.",
        )
    ]
    return page(
        "head_widths.html",
        verdict=verdict(found),
        figures=figures,
        data=found,
        accuracy=accuracy_words(found),
        about=title_words(found),
        sentences=sentences(found)[1:],
        drawings=figures,
        lines=head_lines(found),
        provenance=rows(
            {
                "model": found.model,
                "texts": found.texts,
                "tokens": found.tokens,
                "seconds": found.seconds,
                "interrupted": found.interrupted,
                "attnscope": found.attnscope,
            }
        ),
    )
