"""A measure is a plain tensor function with a card; its parameter names say which frame fields it reads.

    @measure(title="Entropy", unit="nats", high=12.0, scope="attention", citation="arXiv:2303.06296", ...)
    def entropy(row_entropy: Float[Tensor, "batch head query"], query_mask: ...) -> Float[Tensor, "batch head"]:

One call sees one block of one batch and returns one number per sequence: `[batch]` for stream measures,
`[batch, head]` for attention, `[head]` for weights, `[]` for one training step. Several numbers come back as a
mapping from part to tensor. A number with a location (a token, a channel, a key) comes back as `Located`.

Measures import torch, but listing them must not. So `cards.json` in the room holds every card with the hash of its
file (`tools/measures_table.py` writes it, `make tables`). A file that is new or changed is imported instead.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope.core.card import Alarm, Card, Scope, digest, leaf_decorator, names

ROOM = "attnscope.measures"
FILE = "cards.json"
_SITES: Mapping[Scope, tuple[str, ...]] = {
    "stream": ("stream",),
    "attention": ("self", "cross"),
    "weights": ("self", "cross"),
    "training": ("self", "cross"),
}
_UNBOUNDED = {"low": -math.inf, "high": math.inf}  # left out of cards.json, because JSON has no infinity


@dataclass(frozen=True)
class Located:
    """A value per sequence (and head) and its location: `Located(v, {"token": t})`.

    `counted`, `[batch]`, is False for sequences without such a value (no token occurs twice, for example).
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


def _register(card: Card, function: Callable[..., Any]) -> Measure:
    card = replace(card, sites=card.sites or _SITES[card.scope])
    return Measure(card, function, tuple(inspect.signature(function).parameters))


measure = leaf_decorator(Card, _register)


def measure_cards() -> dict[str, Card]:
    """Return every card by name."""
    stored = _stored_cards()
    return {name: _card(name, stored.get(name)) for name in names(ROOM)}


def cards_json(measures: Mapping[str, Measure]) -> bytes:
    """Return the content of cards.json."""
    data = {
        name: {
            "sha256": digest(ROOM, name),
            **{k: v for k, v in measure.card.to_json().items() if v != _UNBOUNDED.get(k, math.nan)},
        }
        for name, measure in sorted(measures.items())
    }
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _card(name: str, stored: Mapping[str, Any] | None) -> Card:
    if stored is not None and stored["sha256"] == digest(ROOM, name):
        known = {field.name: stored.get(field.name, _UNBOUNDED.get(field.name)) for field in fields(Card)}
        alarm = None if known["alarm"] is None else Alarm(**known["alarm"])
        return Card(**{**known, "sites": tuple(known["sites"]), "parts": tuple(known["parts"]), "alarm": alarm})
    from attnscope.core.registry import measures

    return measures()[name].card


@cache
def _stored_cards() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(files(ROOM).joinpath(FILE).read_text("utf-8"))
    return stored
