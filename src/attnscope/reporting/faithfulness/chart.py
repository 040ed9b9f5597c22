"""Gaps of methods with their intervals, the most faithful on top."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.records.faithfulness import Faithfulness
from attnscope.reporting.faithfulness.words import near


def chart(found: Faithfulness, *, width: int | None = None) -> Any:
    """A point for each method and a line for its interval; zero is what chance gives."""
    rows = pd.DataFrame(
        [
            {
                "method": one.title,
                "gap": one.gap.mean,
                "low": one.gap.low,
                "high": one.gap.high,
                "label": f"{one.title}: gap {near(one.gap)}",
            }
            for one in found.methods
        ]
    )
    y = alt.Y("method:N", sort=list(rows["method"]), title=None, axis=alt.Axis(labelLimit=200, grid=False))
    x = alt.X("gap:Q", title="negative area less positive area", axis=alt.Axis(grid=True, tickCount=5))
    base = alt.Chart(rows)
    zero = alt.Chart(pd.DataFrame([{"gap": 0.0}])).mark_rule(style="others", strokeDash=[4, 3]).encode(x="gap:Q")
    layered = alt.layer(
        zero,
        base.mark_bar(height=4, opacity=0.45).encode(x=alt.X("low:Q"), x2="high:Q", y=y),
        base.mark_circle(style="reading", size=60).encode(
            x=x, y=y, description="label:N", tooltip=[alt.Tooltip("label:N", title=" ")]
        ),
    ).properties(height=alt.Step(26))
    if width is not None:
        return layered.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return layered.properties(width=420, title=alt.TitleParams(f"Which explanation is true to {found.model}?"))
