"""Check a shard before it is added up: its document, its layout and its arrays must fit each other.

A shard can come from anywhere, and its hash only shows that it was not changed by accident. Without these checks,
adding up a damaged one would end in an error of numpy, or allocate the sizes that it claims. What all shards of a scan
share is checked once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.scan.survey.builder import NotMeasured
from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.file import key_of, refuse_other_types
from attnscope.commands.scan.survey.packed import LIMB, SKETCH, SUMS, Layout, coded
from attnscope.core.card import Card
from attnscope.core.decoding import FieldError, decode
from attnscope.stats.moments import LONGEST
from attnscope.stats.peak import LABEL_BITS, OFFSET

MOST_SHARDS = 10**7  # a file name has seven digits for the number of a shard
_MOST_HEADS = 1 << (63 - LABEL_BITS)  # of all cells together: a code has so many bits for the number of a head
_MOST_LIMBS = -(-LONGEST // LIMB) + 1


@dataclass(frozen=True)
class ShardDocument:
    plan: dict[str, Any]
    digest: str
    number: int
    of: int
    sequences: int
    tokens: dict[str, int]
    missing: dict[str, Any]
    weights: str
    origin: str
    cards: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShardDocument:
        """Return the checked document; raise an error that names the damage."""
        known = {field.name for field in fields(cls)}
        document: ShardDocument = decode(cls, {name: value for name, value in data.items() if name in known})
        if not 0 <= document.number < document.of <= MOST_SHARDS:
            raise FieldError(f"number: {document.number} of {document.of} is not a possible shard")
        if document.sequences < 0 or "" not in document.tokens or min(document.tokens.values()) < 0:
            raise FieldError("tokens: counts of the corpus and of every stack are needed")
        _check_origin(document.origin)
        _check_weights(document.weights, document.cards)
        return document

    def not_measured(self) -> NotMeasured:
        lacking: dict[str, tuple[str, ...]] = decode(dict[str, tuple[str, ...]], self.missing.get("lacking"))
        lost = decode(dict[str, dict[str, tuple[int, ...]]], self.missing.get("without_meaning"))
        told = decode(dict[str, str], self.missing.get("told", {}))
        return NotMeasured.from_json({"lacking": lacking, "without_meaning": lost, "told": told})


def cards_of(text: str) -> dict[str, Card]:
    cards: dict[str, Card] = decode(dict[str, Card], json.loads(text))
    for name, card in cards.items():
        if name != card.name or not card.parts:
            raise FieldError(f"cards['{name}'] is the card of something else")
    return dict(sorted(cards.items()))


def weights_of(text: str) -> dict[Key, Cell]:
    return {Key(*entry["key"]): Cell.from_json(entry) for entry in json.loads(text)}


@lru_cache(maxsize=4)
def _check_weights(text: str, cards: str) -> None:
    known = cards_of(cards)
    for key in weights_of(text):
        if known[key_of(list(key), known).measure].scope != "weights":
            raise FieldError(f"weights: {key.measure} does not measure weights")


@lru_cache(maxsize=4)
def _check_origin(text: str) -> None:
    origin = json.loads(text)
    if not isinstance(origin, dict):
        raise FieldError("origin: an object with named fields is needed")
    refuse_other_types(origin)
    if not isinstance(origin["model"]["stacks"], list) or not isinstance(origin["corpus"], dict):
        raise FieldError("origin: the stacks and the corpus are needed")


@lru_cache(maxsize=4)
def checked_layout(data: bytes, cards: str) -> Layout:
    layout, known = Layout.from_bytes(data), cards_of(cards)
    for key, heads, peak, tallies in layout.cells:
        key_of(list(key), known)
        if heads is not None and not 0 <= heads < _MOST_HEADS:
            raise FieldError(f"layout: {heads} heads are not possible")
        if not all(isinstance(label, str) for label in (*peak, *tallies)):
            raise FieldError("layout: labels are text")
    if len({key for key, *_ in layout.cells}) < len(layout.cells):
        raise FieldError("layout: a place occurs twice")
    if layout.numbers >= _MOST_HEADS:
        raise FieldError(f"layout: {layout.numbers} heads are not possible")
    return layout


def signed_limbs(magnitude: NDArray[Any], negative: NDArray[Any]) -> NDArray[np.int64]:
    """Return the limbs of exact sums with their signs."""
    if magnitude.dtype != np.uint32 or magnitude.ndim != 2 or negative.shape != magnitude.shape[:1]:
        raise FieldError("exact sums are of another shape or type")
    return magnitude.astype(np.int64) * np.where(negative, -1, 1)[:, None]


def check_arrays(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise an error if the arrays are not those of the layout: one row for each head, and labels in order."""
    for name in ("count", "nonfinite"):
        if (_row(arrays, name, "i", layout.numbers) < 0).any():
            raise FieldError(f"{name}: counts are never negative")
    for name in ("minimum", "maximum", "peak"):
        _row(arrays, name, "f", layout.numbers)
    for name in layout.labels:
        _row(arrays, f"peak.{name}", "i", layout.numbers)
    for name in SUMS:
        low, limbs = _row(arrays, f"{name}.low", "i", layout.numbers), arrays[f"{name}.limbs"]
        possible = limbs.shape[1] <= _MOST_LIMBS and (low >= 0).all() and (low <= _MOST_LIMBS).all()
        if len(limbs) != layout.numbers or not possible:
            raise FieldError(f"{name}: sums are longer than any numbers can make them")
    for name in (SKETCH, *(f"tally.{label}" for label in layout.tallies)):
        lengths = _row(arrays, f"{name}.lengths", "i", layout.numbers)
        labels = _row(arrays, f"{name}.labels", "i", arrays[f"{name}.counts"].size)
        counts = _row(arrays, f"{name}.counts", "i", len(labels))
        if (lengths < 0).any() or (lengths > len(labels)).any() or int(lengths.sum(dtype=np.int64)) != len(labels):
            raise FieldError(f"{name}.lengths: must add up to the {len(labels)} labels")
        if (counts <= 0).any() or (labels >= OFFSET).any() or (labels < -OFFSET).any():
            raise FieldError(f"{name}: counts are positive, and labels below 2^{LABEL_BITS - 1}")
        if (np.diff(coded(arrays, name)[0]) <= 0).any():
            raise FieldError(f"{name}.labels: labels of a head must rise")


def _row(arrays: Mapping[str, NDArray[Any]], name: str, kind: str, size: int) -> NDArray[Any]:
    if name not in arrays or arrays[name].shape != (size,) or arrays[name].dtype.kind != kind:
        raise FieldError(f"{name}: an array of {size} {'whole ' * (kind == 'i')}numbers is needed")
    return arrays[name]
