"""Charts of faithfulness: the gap of each method with its interval, and the answer while tokens are removed."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.evaluate.record import Estimate, Faithfulness
from attnscope.commands.evaluate.words import near
from attnscope.core.words import numeral
from attnscope.reports.theme import fit

TESTS = {"gap": "whole tokens", "soft_gap": "tokens in part"}
ORDERS = {"staying": "least important first", "falling": "most important first"}
ROW = 34  # pixels of a method with its two lines
NARROWEST, AXIS, SPACING = 150, 46, 18  # pixels of one panel of curves, of its axis, and between two


def chart(found: Faithfulness, *, width: int | None = None) -> Any:
    """Draw two points for each method, each with a line for its interval. Zero is chance level."""
    rows = pd.DataFrame(
        [
            {
                "method": method.title,
                "test": words,
                "gap": estimate.mean,
                "low": max(estimate.low, -1.0),
                "high": min(estimate.high, 1.0),
                "label": f"{method.title}, {words}: {near(estimate)}",
            }
            for method in found.methods
            for by, words in TESTS.items()
            for estimate in [_estimate(method, by)]
        ]
    )
    tests = list(TESTS.values())
    y = alt.Y(
        "method:N",
        sort=[method.title for method in found.methods],
        title=None,
        axis=alt.Axis(labelLimit=200, grid=False),
    )
    beside = alt.YOffset("test:N", sort=tests)
    colour = alt.Color("test:N", sort=tests, title=None, legend=alt.Legend(orient="top"))
    x = alt.X("gap:Q", title="gap (negative minus positive area)", axis=alt.Axis(grid=True, tickCount=5))
    base = alt.Chart(rows)
    zero = alt.Chart(pd.DataFrame([{"gap": 0.0}])).mark_rule(style="others", strokeDash=[4, 3]).encode(x="gap:Q")
    layered = alt.layer(
        zero,
        base.mark_bar(height=4, opacity=0.45).encode(x=alt.X("low:Q"), x2="high:Q", y=y, yOffset=beside, color=colour),
        base.mark_circle(style="reading", size=60).encode(
            x=x, y=y, yOffset=beside, color=colour, description="label:N", tooltip=[alt.Tooltip("label:N", title=" ")]
        ),
    ).properties(height=ROW * len(found.methods))
    if width is not None:
        return fit(layered, width)
    return layered.properties(width=420, title=alt.TitleParams(f"Which explanation is most faithful to {found.model}?"))


def curves(found: Faithfulness, *, width: int = 720) -> Any:
    """Draw the share of the answer that is left while tokens are removed, in both orders; one panel per method."""
    columns = max(1, min(len(found.methods), (width + SPACING) // (NARROWEST + AXIS + SPACING)))
    side = (width - SPACING * (columns - 1)) // columns - AXIS
    panels = []
    for method in found.methods:
        steps = len(method.falling) - 1
        rows = pd.DataFrame(
            [
                {
                    "order": words,
                    "gone": step / steps,
                    "answer": value,
                    "label": f"{method.title}, {words}: {numeral(round(value, 3), 3)} is left without "
                    f"{step / steps:.0%} of the tokens",
                }
                for order, words in ORDERS.items()
                for step, value in enumerate(getattr(method, order))
            ]
        )
        lines = alt.Chart(rows).encode(
            x=alt.X("gone:Q", title=None, axis=alt.Axis(format="%", tickCount=3, grid=False)),
            y=alt.Y("answer:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=3)),
            color=alt.Color("order:N", sort=list(ORDERS.values()), title=None, legend=alt.Legend(orient="top")),
        )
        points = lines.mark_circle(style="reading", size=16).encode(
            description="label:N", tooltip=[alt.Tooltip("label:N", title=" ")]
        )
        panels.append(
            alt.layer(lines.mark_line(style="line"), points).properties(
                width=side, height=110, title=alt.TitleParams(method.title, fontSize=12, fontWeight="normal")
            )
        )
    return alt.concat(*panels, columns=columns, spacing=SPACING)


def _estimate(method: Any, by: str) -> Estimate:
    estimate: Estimate = getattr(method, by)
    return estimate
