"""Charts of an explanation: tokens by methods, and tokens by length of path.

Units differ between methods, so every column of the first chart is divided by its own largest number. Tokens that speak
against the answer are below zero. The second chart is exact: its rows and columns add up to the answer.
"""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.explain.record import Explanation
from attnscope.commands.explain.words import MOST_TOKENS
from attnscope.commands.paths.vocabulary import exactly, signed, visible

COLUMN, ROW = 64, 18  # pixels
LONGEST_WORD = 18
MOST_SENDERS = 12  # tokens in the map by length
SEEN = 0.01  # share of the largest number; lengths after the last one above it are not drawn
CONSTANTS, OTHERS = "constants", "other tokens"


def share_rows(found: Explanation) -> list[dict[str, Any]]:
    """Return one row for each token and method, in reading order, for the tokens with the highest scores."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    several = len(found.inputs) > 1
    for method in found.methods:
        largest = method.reach
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
    # Random scores do not choose which tokens are shown.
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


def token_length_rows(found: Explanation) -> list[dict[str, Any]]:
    """Return a row for each token and length: the largest tokens, all others together, and constants."""
    split = found.lengths
    assert split is not None
    words = next(read.tokens for read in found.inputs if read.name == split.input)
    sizes = [max(map(abs, row)) for row in split.tokens]
    kept = sorted(sorted(range(len(words)), key=lambda place: -sizes[place])[:MOST_SENDERS])
    named = [(f"{place}  {visible(words[place])[:LONGEST_WORD]}", split.tokens[place]) for place in kept]
    rest = [row for place, row in enumerate(split.tokens) if place not in kept]
    if rest:
        named.append((OTHERS, tuple(sum(column) for column in zip(*rest, strict=True))))
    if any(split.constants):
        named.append((CONSTANTS, split.constants))
    largest = max(abs(value) for _, row in named for value in row)
    end = max((k for _, row in named for k, value in enumerate(row) if abs(value) >= SEEN * largest), default=0) + 1
    return [
        {
            "token": name,
            "length": length,
            "value": value,
            "label": f"{name}, through {exactly(length)}: {signed(value)}",
        }
        for name, row in named
        for length, value in enumerate(row[:end])
    ]


def length_map(found: Explanation, *, width: int | None = None) -> alt.Chart:
    rows = pd.DataFrame(token_length_rows(found))
    reach = float(rows["value"].abs().max()) or 1.0
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelAngle": 0}
    # Square root, because contributions through heads are small beside those through none.
    scale = alt.Scale(type="pow", exponent=0.5, domain=[-reach, reach], domainMid=0, nice=False, range="diverging")
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    chart = (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("length:O", title="heads passed", axis=alt.Axis(**bare)),
            y=alt.Y("token:N", sort=list(dict.fromkeys(rows["token"])), title=None, axis=alt.Axis(**bare)),
            color=alt.Color("value:Q", scale=scale, title=None, legend=legend),
            description="label:N",
            tooltip=[alt.Tooltip("label:N", title=" ")],
        )
        .properties(height=alt.Step(ROW))
    )
    if width is not None:
        return chart.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return chart.properties(width=360, title=alt.TitleParams("Path contribution by length", fontSize=13))


def chart(found: Explanation) -> Any:
    """Draw the score of every token by each method, as a share of the largest."""
    return explanation_map(found)
