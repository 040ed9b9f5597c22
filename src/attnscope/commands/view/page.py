"""The page of a view: one head as lines or as a grid, all heads as small maps, how exact they are.

Maps stay packed in the page, deflated and in base64, and are unfolded when somebody looks at them: a page of thousands
of maps opens as fast as one of ten. Nothing is fetched; the browser's own DecompressionStream unfolds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.paths.vocabulary import visible
from attnscope.commands.view.record import HeadMap, Part, View
from attnscope.commands.view.words import exactness, sentences, title, verdict
from attnscope.core.words import numeral, percent
from attnscope.reports.colours import diverging, sequential
from attnscope.reports.document import rows
from attnscope.reports.page import page
from attnscope.reports.words import beginning_words

# One head as a map: who looks, from top to bottom; at whom, from left to right. Colour is the root of the weight.
#
# Most weights of most heads are below a hundredth: on a linear scale they would all be white.

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


# The picture of a view: one head as a map of tokens by tokens.


def chart(found: View, layer: int | None = None, head: int | None = None, part: str | None = None) -> Any:
    """One head; without a layer, the one at which the page opens. Without a head, the mean of the layer."""
    if layer is None:
        return attention_map(found, found.opened.layer, found.opened.head, part)
    return attention_map(found, layer, head, part)


@dataclass(frozen=True)
class Packed:
    """One map on the page: the name it is found by, and what it holds."""

    name: str
    text: str


def render(found: View) -> str:
    """The page as text. Equal records give equal pages."""
    _, *said = sentences(found)
    many = max(len(one.tokens) for one in found.inputs)
    return page(
        "view.html",
        verdict=verdict(found),
        styles=("view.css",),
        scripts=("view_maps.js", "view_wall.js", "view.js"),
        data=found,
        tokens=f"{many:,} tokens",
        about=[sentence for sentence in said if sentence not in (exactness(found), found.checked)],
        exactness=exactness(found),
        heading=("attention", "maps", "tokens", "kept", "largest error"),
        lines=[_line(found, part) for part in found.parts],
        view={
            "inputs": {one.name: [visible(token) for token in one.tokens] for one in found.inputs},
            "parts": [_part(part) for part in found.parts],
            "opened": {
                "part": [part.name for part in found.parts].index(found.opened.part),
                "layer": found.opened.layer,
                "head": found.opened.head,
            },
            "ramps": {theme: [list(sequential(theme)), list(diverging(theme))] for theme in ("light", "dark")},
        },
        maps=[
            Packed(f"map-{number}-{one.layer}-{one.head}", one.packed)
            for number, part in enumerate(found.parts)
            for one in part.heads
        ],
        begun=beginning_words(found.provenance),
        provenance=rows(found.provenance),
    )


def _part(part: Part) -> dict[str, Any]:
    return {
        "title": title(part).capitalize(),
        "queries": part.queries,
        "keys": part.keys,
        "causal": part.causal,
        "heads": [
            {"layer": one.layer, "head": one.head, "signed": one.signed, "facts": _facts(one)} for one in part.heads
        ],
    }


def _facts(one: HeadMap) -> str:
    """What is said under a head."""
    said = [f"{percent(one.first)} on the first token"]
    if one.previous is not None:
        said.append(f"{percent(one.previous)} on the one before")
    if one.own is not None:
        said.append(f"{percent(one.own)} on itself")
    if one.entropy is not None:
        said.append(f"entropy {numeral(one.entropy, 3)} nats")
    return " · ".join((*said, f"kept within {numeral(one.error, 2)}"))


def _line(found: View, part: Part) -> tuple[str, ...]:
    queries, keys = len(found.tokens(part.queries)), len(found.tokens(part.keys))
    size = sum(len(one.packed) for one in part.heads)
    return (
        title(part),
        f"{len(part.heads):,}",
        f"{queries:,}" if queries == keys else f"{queries:,} to {keys:,}",
        f"{numeral(size / 1e6, 3)} MB" if size >= 1e6 else f"{numeral(size / 1e3, 3)} kB",
        numeral(part.error, 3),
    )
