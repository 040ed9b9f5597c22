"""A measure is a plain tensor function with a card; its parameter names say which frame fields it reads.

    @measure(title="Entropy", unit="nats", high=12.0, scope="attention", citation="arXiv:2303.06296", ...)
    def entropy(row_entropy: Float[Tensor, "batch head query"], query_mask: ...) -> Float[Tensor, "batch head"]:

One call sees one layer of one batch and returns one number per sequence: `[batch]` for stream measures,
`[batch, head]` for attention, `[head]` for weights, `[]` for training (one step of it). Several numbers come back as a
mapping from part to tensor, and a number that was found somewhere (a token, a channel, a key) comes back as `Located`.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope.core.card import Alarm, Bound, Card, Group, Scope, digest, names

_DEFAULT_SITES: Mapping[Scope, tuple[str, ...]] = {
    "stream": ("stream",),
    "attention": ("self", "cross"),
    "weights": ("self", "cross"),
    "training": ("self", "cross"),
}


@dataclass(frozen=True)
class Located:
    """A value per sequence (and head) together with where it was found: `Located(v, {"token": t})`.

    `counted`, `[batch]`, is False for sequences that have no such value (no token occurs twice, say).
    """

    value: Any
    where: Mapping[str, Any] = field(default_factory=dict)
    counted: Any = None


@dataclass(frozen=True)
class Measure:
    """A registered measure: call it with the frame fields that `reads` names."""

    card: Card
    function: Callable[..., Any]
    reads: tuple[str, ...]

    def __call__(self, **fields: Any) -> dict[str, Located]:
        answer = self.function(**fields)
        parts = answer if isinstance(answer, Mapping) else {self.card.parts[0]: answer}
        if tuple(parts) != self.card.parts:
            raise TypeError(f"measure {self.card.name} returned parts {tuple(parts)}, its card says {self.card.parts}")
        return {part: v if isinstance(v, Located) else Located(v) for part, v in parts.items()}


def measure(
    *,
    title: str,
    summary: str,
    unit: str,
    citation: str,
    scope: Scope,
    low: float = 0.0,
    high: float = float("inf"),
    group: Group = "default",
    sites: tuple[str, ...] | None = None,
    parts: tuple[str, ...] = ("value",),
    alarm: Alarm | None = None,
    log: bool = False,
    of_block: bool = False,
    bound: Bound | None = None,
) -> Callable[[Callable[..., Any]], Measure]:
    """Turn a function into a measure named like the function, which is named like its file.

    `low` and `high` bound what the measure can return; `log` asks charts for a logarithmic axis; `sites` says where
    along a block it is taken (`stream` enters a block, `middle` follows the attention write; `self` and `cross` are
    attention calls). A stream measure `of_block` compares the stream behind a block with that before it. `bound` names
    what a sequence of n tokens bounds it by (`records.survey.baseline`).
    """

    def register(function: Callable[..., Any]) -> Measure:
        reads = tuple(inspect.signature(function).parameters)
        card = Card(
            name=function.__name__,
            title=title,
            summary=summary,
            unit=unit,
            low=low,
            high=high,
            citation=citation,
            scope=scope,
            group=group,
            sites=_DEFAULT_SITES[scope] if sites is None else sites,
            parts=parts,
            alarm=alarm,
            log=log,
            of_block=of_block,
            bound=bound,
        )
        return Measure(card=card, function=function, reads=reads)

    return register


# What can be measured, without importing it: measures import torch, and a list of them should not.
#
# `cards.json`, in the room, holds the card of every measure with the hash of the file that defines it; it is written by
# `tools/measures_table.py` (`make tables`). A file that is new or has changed since is imported and asked itself, so
# the list is right either way, and needs no torch where nothing has changed.

ROOM = "attnscope.measures"
FILE = "cards.json"
_WITHOUT_END = {"low": -math.inf, "high": math.inf}
"""Bounds that are none. JSON has no word for infinity, so the file leaves them out."""


def measure_cards() -> dict[str, Card]:
    """Every measure's card, by name."""
    written = _written()
    return {name: _card(name, written.get(name)) for name in names(ROOM)}


def cards_json(measures: Mapping[str, Measure]) -> bytes:
    """The file in the room."""
    data = {name: {"sha256": digest(ROOM, name), **_document(one.card)} for name, one in sorted(measures.items())}
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _card(name: str, written: Mapping[str, Any] | None) -> Card:
    if written is not None and written["sha256"] == digest(ROOM, name):
        known = {field.name: written.get(field.name, _WITHOUT_END.get(field.name)) for field in fields(Card)}
        alarm = None if known["alarm"] is None else Alarm(**known["alarm"])
        return Card(**{**known, "sites": tuple(known["sites"]), "parts": tuple(known["parts"]), "alarm": alarm})
    from attnscope.core.registry import measures

    return measures()[name].card


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(ROOM).joinpath(FILE).read_text("utf-8"))
    return found


def _document(card: Card) -> dict[str, Any]:
    return {name: said for name, said in card.to_json().items() if said != _WITHOUT_END.get(name, math.nan)}
