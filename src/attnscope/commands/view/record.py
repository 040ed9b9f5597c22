"""The record of `view`: the attention of every head on one text, in eight bits per weight.

    view.attention(3, 5)                     weights [query, key] of head 5 of block 3, within `view.error`
    view.attention(3)                        the mean of the heads of block 3
    view.attention(0, 1, part="decoder cross")
    view.save("view.html"); view.save("view.json"); View.load("view.json")

Parts are the kinds of attention of a model: most have one part, `model`; models with two stacks have `encoder`,
`decoder` and `decoder cross`.

Every row of a map has its own scale, its largest weight m: a weight a is stored as round(255 a / m). The error is at
most half a step, m / 510, so at most 1 / 510 = 0.00196 if rows sum to one. One scale for the whole map would take less
space, but diffuse rows would be lost beside rows that attend to a single token. For weights with signs (of variants), a
step is m / 127 to either side of code 128. Maps are deflated, and unpacked only when they are needed.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float, Float32, UInt8

from attnscope.commands.explain.record import Input
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.ranges import Finite, Index, Provenance, Several, Size, slack
from attnscope.core.words import ranges
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

STEPS, SIGNED_STEPS, ZERO = 255, 127, 128
LEVEL = 6  # level of deflate: 9 takes three times as long and saves 4%


def quantised(
    weights: Float[np.ndarray, "*heads query key"], *, signed: bool = False
) -> tuple[UInt8[np.ndarray, "*heads query key"], Float32[np.ndarray, "*heads query"]]:
    """Return the codes of weights, and the scale of every row; a row of zeros has scale 0."""
    scales = np.abs(weights).max(-1).astype(np.float32)
    steps = (SIGNED_STEPS if signed else STEPS) / np.where(scales > 0, scales, 1).astype(weights.dtype)
    codes = np.rint(weights * steps[..., None])
    return (codes + ZERO if signed else codes).clip(0, STEPS).astype(np.uint8), scales


def restored(
    codes: UInt8[np.ndarray, "*heads query key"], scales: Float32[np.ndarray, "*heads query"], *, signed: bool = False
) -> Float32[np.ndarray, "*heads query key"]:
    """Return the weights that codes stand for."""
    step = scales[..., None] / np.float32(SIGNED_STEPS if signed else STEPS)
    return (codes.astype(np.float32) - np.float32(ZERO if signed else 0)) * step


def packed(
    codes: UInt8[np.ndarray, "query key"], scales: Float32[np.ndarray, " query"], *, causal: bool = False
) -> str:
    """Return scales and codes (of a causal map only up to the diagonal), deflated and in base64."""
    kept = codes[np.tril_indices(len(codes))] if causal else codes
    return base64.b64encode(zlib.compress(scales.astype("<f4").tobytes() + kept.tobytes(), LEVEL)).decode("ascii")


def unpacked(
    text: str, queries: int, keys: int, *, causal: bool = False
) -> tuple[UInt8[np.ndarray, "query key"], Float32[np.ndarray, " query"]]:
    """Return codes and scales from a text that `packed` made. Raise a `ValueError` for any other text."""
    entries = queries * (queries + 1) // 2 if causal else queries * keys
    size = 4 * queries + entries
    try:
        unfolding = zlib.decompressobj()
        raw = unfolding.decompress(base64.b64decode(text, validate=True), size + 1)  # never unpack more than needed
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a packed map is needed ({error})") from error
    if len(raw) != size:
        raise ValueError(f"a map of {queries} by {keys} weights is needed")
    scales = np.frombuffer(raw, "<f4", queries).astype(np.float32)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise ValueError("finite scales of rows are needed")
    stored = np.frombuffer(raw, np.uint8, entries, 4 * queries)
    if not causal:
        return stored.reshape(queries, keys).copy(), scales
    codes = np.zeros((queries, keys), np.uint8)
    codes[np.tril_indices(queries)] = stored
    return codes, scales


@dataclass(frozen=True)
class HeadMap:
    """The map of one head.

    `first`, `own` and `previous` are the mean shares of attention that go to the first token, to the token itself and
    to the token before it. `own` and `previous` are None if queries and keys are different tokens.
    """

    layer: Index
    head: Index
    error: Size  # largest difference from the computed weights
    entropy: Size | None  # nats, mean over rows; None if weights have signs
    first: Finite
    own: Finite | None
    previous: Finite | None
    packed: str
    signed: bool = False


def _check_head(head: HeadMap, keys: int, name: str) -> None:
    """Raise a `FieldError` for numbers that no head with this many keys has."""
    if head.signed:
        return
    most = {"first": 1.0, "own": 1.0, "previous": 1.0, "entropy": math.log(keys), "error": 1.0}
    for field_name, high in most.items():
        value = getattr(head, field_name)
        if value is not None and not -slack(0.0) <= value <= high + slack(high):
            raise FieldError(f"{name}.{field_name}: a number from 0 to {high:.4g} is needed, not {value:g}")


@dataclass(frozen=True)
class Part:
    """One kind of attention: tokens of input `queries` attend to tokens of input `keys`."""

    name: str
    queries: str
    keys: str
    causal: bool
    window: Several | None  # how many tokens back a query sees, if all blocks have the same window
    heads: tuple[HeadMap, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted({one.layer for one in self.heads}))

    @property
    def error(self) -> float:
        return max((one.error for one in self.heads), default=0.0)


@dataclass(frozen=True)
class Opened:
    """The map at which the page opens; without a head, the mean of all heads of the block."""

    part: str
    layer: Index
    head: Index | None = None


@dataclass(frozen=True, repr=False)
class View(Record):
    """The attention maps of all heads on one text."""

    KIND: ClassVar[str] = "view"
    COMMAND: ClassVar[str] = "view"
    FILE: ClassVar[str] = "view.json"
    INDENT: ClassVar[int | None] = None

    model: str
    class_name: str
    text: str
    dtype: str
    inputs: tuple[Input, ...]
    parts: tuple[Part, ...]
    opened: Opened
    checked: str  # a sentence on how far maps agree with the model
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)

    @property
    def error(self) -> float:
        """The largest error of any weight."""
        return max((part.error for part in self.parts), default=0.0)

    @property
    def heads(self) -> tuple[HeadMap, ...]:
        return tuple(head for part in self.parts for head in part.heads)

    def tokens(self, name: str) -> tuple[str, ...]:
        return next(one.tokens for one in self.inputs if one.name == name)

    def part(self, name: str | None = None) -> Part:
        """Return a part by name, by default the one at which the page opens."""
        wanted = self.opened.part if name is None else name
        parts = {part.name: part for part in reversed(self.parts)}
        if wanted not in parts:
            raise RefusalError(f"This view has no part '{wanted}'.{nearest(wanted, parts)}")
        return parts[wanted]

    def attention(
        self, layer: int, head: int | None = None, part: str | None = None
    ) -> Float32[np.ndarray, "query key"]:
        """Return the weights of a head, or the mean of all stored heads of a block."""
        of = self.part(part)
        maps = [head_map for head_map in of.heads if head_map.layer == layer and head in (None, head_map.head)]
        if not maps:
            if layer not in of.layers:
                raise RefusalError(f"This view has no block {layer}: choose one of {ranges(of.layers)}.")
            there = ranges(head_map.head for head_map in of.heads if head_map.layer == layer)
            raise RefusalError(f"This view has no head {head} in block {layer}: choose one of {there}.")
        queries, keys = len(self.tokens(of.queries)), len(self.tokens(of.keys))
        total = np.zeros((queries, keys), np.float32)
        for head_map in maps:
            total += restored(*unpacked(head_map.packed, queries, keys, causal=of.causal), signed=head_map.signed)
        return total / np.float32(len(maps))

    def to_json(self) -> dict[str, Any]:
        """Return everything but the maps."""
        bare = [replace(part, heads=tuple(replace(head, packed="") for head in part.heads)) for part in self.parts]
        data = super(View, replace(self, parts=tuple(bare))).to_json()
        for part in data["parts"]:
            for head in part["heads"]:
                del head["packed"]
        return data

    def document(self) -> dict[str, Any]:
        return Record.to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> View:
        """Read what `document` returned; raise a `FieldError` for wrong fields."""
        record = super().from_json(data)
        names = [tokens.name for tokens in record.inputs]
        for number, part in enumerate(record.parts):
            if part.queries not in names or part.keys not in names:
                raise FieldError(f"parts[{number}]: its tokens are not among the inputs")
            queries, keys = len(record.tokens(part.queries)), len(record.tokens(part.keys))
            if part.causal and queries != keys:
                raise FieldError(f"parts[{number}].causal: a causal part needs as many queries as keys")
            for index, head_map in enumerate(part.heads):
                try:
                    unpacked(head_map.packed, queries, keys, causal=part.causal)
                except ValueError as error:
                    raise FieldError(f"parts[{number}].heads[{index}].packed: {error}") from error
                _check_head(head_map, keys, f"parts[{number}].heads[{index}]")
        if len(set(names)) < len(names) or record.opened.part not in [part.name for part in record.parts]:
            raise FieldError("opened: a part of this record is needed, and inputs need different names")
        opened = record.part()
        places = {pair for head in opened.heads for pair in ((head.layer, head.head), (head.layer, None))}
        if (record.opened.layer, record.opened.head) not in places:
            raise FieldError("opened: a block and a head of this record are needed")
        return record

    def table(self) -> pandas.DataFrame:
        """Return one row for each head."""
        import pandas

        names = ("layer", "head", "entropy", "first", "own", "previous", "error")
        return pandas.DataFrame(
            [
                {"part": part.name} | {name: getattr(head, name) for name in names}
                for part in self.parts
                for head in part.heads
            ]
        )

    def __repr__(self) -> str:
        tokens = sum(len(one.tokens) for one in self.inputs)
        return f"<View of {self.model}: {len(self.heads)} heads on {tokens} tokens, within {self.error:.2g}>"
