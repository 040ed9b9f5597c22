"""One head as a map: who looks, from top to bottom; at whom, from left to right. Colour is the root of the weight.

Most weights of most heads are below a hundredth: on a linear scale they would all be white.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.charts.path_rows import visible
from attnscope.core.numerals import numeral
from attnscope.records.view import View

MOST_TOKENS = 32  # of either side: labels have room
CELL = 16
LONGEST_WORD = 14


def weight_rows(found: View, layer: int, head: int | None, part: str | None = None) -> list[dict[str, Any]]:
    """One row for each pair of tokens, of the first tokens of each side; what a causal map forbids has none."""
    of = found.part(part)
    weights = found.attention(layer, head, part)
    sides = [_labels(found.tokens(name)[:MOST_TOKENS]) for name in (of.queries, of.keys)]
    return [
        {
            "query": query,
            "key": key,
            "weight": float(weights[i, j]),
            "label": f"{query} gives {numeral(float(weights[i, j]), 3)} to {key}",
        }
        for i, query in enumerate(sides[0])
        for j, key in enumerate(sides[1])
        if not (of.causal and j > i)
    ]


def attention_map(found: View, layer: int, head: int | None, part: str | None = None) -> alt.Chart:
    rows = pd.DataFrame(weight_rows(found, layer, head, part))
    of = found.part(part)
    orders = [_labels(found.tokens(name)[:MOST_TOKENS]) for name in (of.queries, of.keys)]
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelLimit": 120}
    scale = alt.Scale(type="sqrt", domain=[0, max(float(rows["weight"].max()), 1e-6)], range="heatmap", nice=False)
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    who = f"layer {layer}, {'mean of heads' if head is None else f'head {head}'}"
    many = max(len(found.tokens(name)) for name in (of.queries, of.keys))
    some = [f"first {MOST_TOKENS} of {many} tokens"] if many > MOST_TOKENS else []
    return (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=orders[1], title=None, axis=alt.Axis(orient="top", labelAngle=-60, **bare)),
            y=alt.Y("query:N", sort=orders[0], title=None, axis=alt.Axis(**bare)),
            color=alt.Color("weight:Q", scale=scale, title="attention", legend=legend),
            description="label:N",
            tooltip=[alt.Tooltip("label:N", title=" ")],
        )
        .properties(
            width=alt.Step(CELL),
            height=alt.Step(CELL),
            title=alt.TitleParams(f"{found.model}: {who}", subtitle=some),
        )
    )


def _labels(tokens: tuple[str, ...]) -> list[str]:
    words = [visible(token) for token in tokens]
    return [
        f"{place} {word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + '…'}"
        for place, word in enumerate(words)
    ]
