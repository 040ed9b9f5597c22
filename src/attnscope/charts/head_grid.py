"""One attention measure as a map, blocks from left to right and heads from top to bottom, so that depth
runs as it does in the profiles. NaN cells are crossed out, never coloured.

    chart = head_grid(survey.table(), survey.cards["sink_mass"], stack="decoder", site="self")
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from attnscope.charts.depth_profile import chart_title, first_panel
from attnscope.charts.rows import head_rows, part_title, unit_title
from attnscope.charts.scales import scale
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError

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
