"""The page and the chart of a view.

Maps stay compressed (deflate, base64) in the page until they are shown, and the browser's DecompressionStream unpacks
them, so a page of thousands of maps opens as fast as one of ten.
"""

from __future__ import annotations

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

MOST_TOKENS = 32  # most queries and most keys in a chart
FEW_BLOCKS = 12  # up to this many, all heads stand beside the one that is looked at
CELL = 16
LONGEST_WORD = 14


def weight_rows(record: View, layer: int, head: int | None, part: str | None = None) -> list[dict[str, Any]]:
    """Return a row for each query and key among the first tokens; a causal map has no later keys."""
    of = record.part(part)
    weights = record.attention(layer, head, part)
    sides = [_labels(record.tokens(name)[:MOST_TOKENS]) for name in (of.queries, of.keys)]
    return [
        {"query": query, "key": key, "weight": (weight := float(weights[i, j]))}
        | {"label": f"{query} gives {numeral(weight, 3)} to {key}"}
        for i, query in enumerate(sides[0])
        for j, key in enumerate(sides[1])
        if not (of.causal and j > i)
    ]


def attention_map(record: View, layer: int, head: int | None, part: str | None = None) -> alt.Chart:
    """Draw one head: queries downwards, keys to the right.

    Colour is the square root of the weight, because most weights are below 0.01 and would be white.
    """
    rows = pd.DataFrame(weight_rows(record, layer, head, part))
    of = record.part(part)
    orders = [_labels(record.tokens(name)[:MOST_TOKENS]) for name in (of.queries, of.keys)]
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelLimit": 120}
    scale = alt.Scale(type="sqrt", domain=[0, max(float(rows["weight"].max()), 1e-6)], range="heatmap", nice=False)
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    who = f"block {layer}, {'mean of heads' if head is None else f'head {head}'}"
    many = max(len(record.tokens(name)) for name in (of.queries, of.keys))
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
        .properties(width=alt.Step(CELL), height=alt.Step(CELL))
        .properties(title=alt.TitleParams(f"{record.model}: {who}", subtitle=some))
    )


def _labels(tokens: tuple[str, ...]) -> list[str]:
    words = [visible(token) for token in tokens]
    short = [word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "…" for word in words]
    return [f"{place} {word}" for place, word in enumerate(short)]


def chart(record: View, layer: int | None = None, head: int | None = None, part: str | None = None) -> Any:
    """Draw one head, by default the one at which the page opens; with `layer` alone, the mean of its heads."""
    if layer is None:
        return attention_map(record, record.opened.layer, record.opened.head, part)
    return attention_map(record, layer, head, part)


def render(record: View) -> str:
    """Return the page. Equal records give equal pages."""
    longest = max(len(row.tokens) for row in record.inputs)
    return page(
        "view.html",
        verdict=verdict(record),
        styles=("view.css",),
        scripts=("view_maps.js", "view_wall.js", "view.js"),
        data=record,
        tokens=f"{longest:,} tokens",
        about=[sentence for sentence in sentences(record)[1:] if sentence not in (exactness(record), record.checked)],
        exactness=exactness(record),
        heading=("attention", "maps", "tokens", "size", "largest error"),
        lines=[_line(record, part) for part in record.parts],
        beside=max(len(part.layers) for part in record.parts) <= FEW_BLOCKS,
        view={
            "inputs": {row.name: [visible(token) for token in row.tokens] for row in record.inputs},
            "parts": [_part(part) for part in record.parts],
            "opened": {
                "part": [part.name for part in record.parts].index(record.opened.part),
                "layer": record.opened.layer,
                "head": record.opened.head,
            },
            "ramps": {theme: [list(sequential(theme)), list(diverging(theme))] for theme in ("light", "dark")},
        },
        maps={
            f"map-{number}-{head.layer}-{head.head}": head.packed
            for number, part in enumerate(record.parts)
            for head in part.heads
        },
        begun=beginning_words(record.provenance),
        provenance=rows(record.provenance),
    )


def _part(part: Part) -> dict[str, Any]:
    return {
        "title": title(part).capitalize(),
        "queries": part.queries,
        "keys": part.keys,
        "causal": part.causal,
        "heads": [{"layer": h.layer, "head": h.head, "signed": h.signed, "facts": _facts(h)} for h in part.heads],
    }


def _facts(head: HeadMap) -> str:
    """Return the line under a head."""
    shares = ((head.first, "the first token"), (head.previous, "the previous token"), (head.own, "itself"))
    facts = [f"{percent(share)} on {words}" for share, words in shares if share is not None]
    entropy = [] if head.entropy is None else [f"entropy {numeral(head.entropy, 3)} nats"]
    return " · ".join((*facts, *entropy, f"error up to {numeral(head.error, 2)}"))


def _line(record: View, part: Part) -> tuple[str, ...]:
    queries, keys = len(record.tokens(part.queries)), len(record.tokens(part.keys))
    size = sum(len(head.packed) for head in part.heads)
    return (
        title(part),
        f"{len(part.heads):,}",
        f"{queries:,}" if queries == keys else f"{queries:,} to {keys:,}",
        f"{numeral(size / 1e6, 3)} MB" if size >= 1e6 else f"{numeral(size / 1e3, 3)} kB",
        numeral(part.error, 3),
    )
