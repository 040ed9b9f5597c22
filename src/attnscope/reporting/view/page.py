"""The page of a view: one head as lines or as a grid, all heads as small maps, how exact they are.

Maps stay packed in the page, deflated and in base64, and are unfolded when somebody looks at them: a page of thousands
of maps opens as fast as one of ten. Nothing is fetched; the browser's own DecompressionStream unfolds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnscope.charts.palette import diverging, sequential
from attnscope.charts.path_rows import visible
from attnscope.core.numerals import numeral
from attnscope.core.words import percent
from attnscope.records.view import HeadMap, Part, View
from attnscope.reporting.beginning import beginning_words
from attnscope.reporting.document import page, rows
from attnscope.reporting.view.words import exactness, sentences, title, verdict


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
