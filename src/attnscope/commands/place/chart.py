"""The chart of a placement: where the numbers of a model lie among those of real models, one line for each measure."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.place.record import Placement
from attnscope.commands.place.words import several_stacks, title

LABELS = 250  # pixels for the names of measures
STEP = 17


def chart(record: Placement) -> Any:
    """Draw, for every measure, the share of the numbers of real models that are smaller than those of this model."""
    return places_chart(record, width=720).properties(title=f"{record.model[:60]} among real models")


def places_chart(record: Placement, *, width: int) -> Any:
    several = several_stacks(record)
    ordered = sorted(record.rows, key=lambda row: (row.inside, title(row, several)))
    rows = pd.DataFrame(
        [
            {
                "name": title(row, several),
                "low": row.low_share,
                "median": row.median_share,
                "high": row.high_share,
                "from": 0.05,
                "to": 0.95,
            }
            for row in ordered
        ]
    )
    across = max(120, width - LABELS)
    x = alt.X("low:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%", tickCount=5), title=None)
    label = alt.Axis(labelLimit=LABELS, ticks=False, domain=False, grid=False)
    y = alt.Y("name:N", sort=list(dict.fromkeys(rows["name"])), title=None, axis=label)
    tooltip = [alt.Tooltip("name:N"), *(alt.Tooltip(f"{part}:Q", format=".0%") for part in ("low", "median", "high"))]
    base, usual = alt.Chart(rows), alt.X("from:Q", scale=alt.Scale(domain=[0, 1]))
    return alt.layer(
        base.mark_bar(style="usual", size=STEP, aria=False).encode(x=usual, x2="to:Q", y=y),
        base.mark_bar(size=2).encode(x=x, x2="high:Q", y=y, tooltip=tooltip),
        base.mark_circle(style="reading", size=44).encode(x="median:Q", y=y, tooltip=tooltip),
    ).properties(width=across, height=alt.Step(STEP))
