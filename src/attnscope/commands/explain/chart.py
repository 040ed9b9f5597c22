"""The picture of an explanation: tokens by methods."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.explain.record import Explanation, Scored
from attnscope.commands.paths.chart_rows import signed, visible

# Tokens by methods as a map: how much every token did, as a share of the token that did most by that method.
#
# Units differ from method to method, so each column is divided by its own largest number; what speaks against the
# answer is below zero.

MOST_TOKENS = 36  # rows that have room
COLUMN, ROW = 64, 18  # pixels
LONGEST_WORD = 18


def reach(method: Scored) -> float:
    """The largest number of a method, either sign; 1 where there is none."""
    sizes = [abs(number) for row in method.scores for number in row if math.isfinite(number)]
    return max(sizes, default=0.0) or 1.0


def share_rows(found: Explanation) -> list[dict[str, Any]]:
    """One row for each token and method, in the order of reading; of many tokens those that did most by any method."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    several = len(found.inputs) > 1
    for method in found.methods:
        largest = reach(method)
        for token in found.tokens(method.name):
            word = visible(token.word)
            short = word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…"
            cells.setdefault((token.input, token.place), []).append(
                {
                    "token": f"{f'{token.input} ' if several else ''}{token.place}  {short}",
                    "method": method.title,
                    "share": token.score / largest if math.isfinite(token.score) else 0.0,
                    "label": f"'{word}' (token {token.place}), {method.title}: {signed(token.score)}",
                }
            )
    # What is drawn at random has no say in which tokens are shown.
    knowing = {one.title for one in found.voting} or {one.title for one in found.methods}
    order = sorted(
        cells,
        key=lambda place: -max((abs(cell["share"]) for cell in cells[place] if cell["method"] in knowing), default=0.0),
    )
    kept = set(order[:MOST_TOKENS])
    return [cell for place, row in cells.items() if place in kept for cell in row]


def explanation_map(found: Explanation, *, width: int | None = None) -> alt.Chart:
    rows = pd.DataFrame(share_rows(found))
    tokens, methods = (list(dict.fromkeys(rows[name])) for name in ("token", "method"))
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False}
    low = -1.0 if bool((rows["share"] < 0).any()) else 0.0
    two_sided = {"domain": [-1, 1], "domainMid": 0, "range": "diverging"}
    scale = alt.Scale(**(two_sided if low < 0 else {"domain": [0, 1], "range": "heatmap"}), nice=False)
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    chart = (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("method:N", sort=methods, title=None, axis=alt.Axis(orient="top", labelAngle=-35, **bare)),
            y=alt.Y("token:N", sort=tokens, title=None, axis=alt.Axis(labelLimit=190, **bare)),
            color=alt.Color("share:Q", scale=scale, title="share of the largest", legend=legend),
            description="label:N",
            tooltip=[alt.Tooltip("label:N", title=" ")],
        )
        .properties(height=alt.Step(ROW))
    )
    if width is not None:
        return chart.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    heading = alt.TitleParams(
        f"{found.model}: {visible(found.target)}", subtitle=["what every token did, by each method"]
    )
    return chart.properties(width=alt.Step(COLUMN), title=heading)


def chart(found: Explanation) -> Any:
    """How much every token did by each method, as a share of the largest."""
    return explanation_map(found)
