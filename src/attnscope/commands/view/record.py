"""What `view` found: the attention of one text, every head, in eight bits a weight.

    view.attention(3, 5)                     weights [query, key] of head 5 of layer 3, within `view.error`
    view.attention(3)                        the mean of the heads of layer 3
    view.attention(0, 1, part="decoder cross")
    view.save("view.html"); view.save("view.json"); View.load("view.json")

Parts are the kinds of attention that a model has: `model` in most, `encoder`, `decoder` and `decoder cross` where there
are two stacks. Maps stay packed until they are asked for.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float, Float32, UInt8

from attnscope.commands.explain.record import Input
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.words import ranges
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

# An attention map in eight bits a weight, packed for a page, and back.
#
#     codes, scales = quantised(weights)                  a row at a time: codes times scale / 255
#     packed(codes, scales, causal=True)                  deflated, in base64; above the diagonal nothing is kept
#     restored(*unpacked(text, 512, 512, causal=True))
#
# Every row has a scale of its own, its largest weight m: a weight a is kept as round(255 a / m). The error is then half
# a step, m / 510, at most 1 / 510 = 0.00196 where rows sum to one. A scale for the whole map would be smaller to keep
# and would lose every diffuse row beside one that looks at a single token. Where weights have signs (attention that was
# exchanged), a step is m / 127 to either side of code 128.

STEPS, SIGNED_STEPS, ZERO = 255, 127, 128
LEVEL = 6  # of deflate: 9 takes three times as long for 4% less


def quantised(
    weights: Float[np.ndarray, "*heads query key"], *, signed: bool = False
) -> tuple[UInt8[np.ndarray, "*heads query key"], Float32[np.ndarray, "*heads query"]]:
    """Codes and the scale of every row; a row of zeros has scale 0."""
    scales = np.abs(weights).max(-1).astype(np.float32)
    steps = (SIGNED_STEPS if signed else STEPS) / np.where(scales > 0, scales, 1).astype(weights.dtype)
    codes = np.rint(weights * steps[..., None])
    return (codes + ZERO if signed else codes).clip(0, STEPS).astype(np.uint8), scales


def restored(
    codes: UInt8[np.ndarray, "*heads query key"], scales: Float32[np.ndarray, "*heads query"], *, signed: bool = False
) -> Float32[np.ndarray, "*heads query key"]:
    """The weights that codes stand for."""
    step = scales[..., None] / np.float32(SIGNED_STEPS if signed else STEPS)
    return (codes.astype(np.float32) - np.float32(ZERO if signed else 0)) * step


def packed(
    codes: UInt8[np.ndarray, "query key"], scales: Float32[np.ndarray, " query"], *, causal: bool = False
) -> str:
    """Scales, then codes row by row (of a causal map up to the diagonal), deflated and in base64."""
    kept = codes[np.tril_indices(len(codes))] if causal else codes
    return base64.b64encode(zlib.compress(scales.astype("<f4").tobytes() + kept.tobytes(), LEVEL)).decode("ascii")


def unpacked(
    text: str, queries: int, keys: int, *, causal: bool = False
) -> tuple[UInt8[np.ndarray, "query key"], Float32[np.ndarray, " query"]]:
    """What `packed` was given; `ValueError` where the text holds something else. Above the diagonal codes are 0."""
    entries = queries * (queries + 1) // 2 if causal else queries * keys
    size = 4 * queries + entries
    try:
        unfolding = zlib.decompressobj()
        raw = unfolding.decompress(base64.b64decode(text, validate=True), size + 1)  # never more than it should be
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a packed map is needed ({error})") from error
    if len(raw) != size:
        raise ValueError(f"a map of {queries} by {keys} weights is needed")
    scales = np.frombuffer(raw, "<f4", queries).astype(np.float32)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise ValueError("scales of rows that are numbers are needed")
    given = np.frombuffer(raw, np.uint8, entries, 4 * queries)
    if not causal:
        return given.reshape(queries, keys).copy(), scales
    codes = np.zeros((queries, keys), np.uint8)
    codes[np.tril_indices(queries)] = given
    return codes, scales


@dataclass(frozen=True)
class HeadMap:
    """One head of one layer. Shares are means over its rows: of the first token, of the token itself, of the one
    before it; None where queries and keys are not the same tokens."""

    layer: int
    head: int
    error: float  # largest difference between what is kept and what was computed
    entropy: float | None  # nats, mean over rows; None where weights have signs
    first: float
    own: float | None
    previous: float | None
    packed: str
    signed: bool = False


@dataclass(frozen=True)
class Part:
    """One kind of attention: whose tokens look (`queries`) at whose (`keys`), both names of inputs."""

    name: str
    queries: str
    keys: str
    causal: bool
    window: int | None  # tokens that a query reaches, where all layers have the same bound
    heads: tuple[HeadMap, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted({one.layer for one in self.heads}))

    @property
    def error(self) -> float:
        return max((one.error for one in self.heads), default=0.0)


@dataclass(frozen=True)
class Opened:
    """Where a page begins; no head is the mean of all heads of the layer."""

    part: str
    layer: int
    head: int | None = None


@dataclass(frozen=True, repr=False)
class View(Record):
    """Every head on one text."""

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
    checked: str  # how far the maps agree with what the model did, in words
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

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
        """A part by its name; without one, that at which the page opens."""
        wanted = self.opened.part if name is None else name
        found = next((one for one in self.parts if one.name == wanted), None)
        if found is None:
            raise RefusalError(f"There is no part '{wanted}' here.{nearest(wanted, [one.name for one in self.parts])}")
        return found

    def attention(
        self, layer: int, head: int | None = None, part: str | None = None
    ) -> Float32[np.ndarray, "query key"]:
        """The weights of a head, or the mean of all heads of a layer that are kept."""
        of = self.part(part)
        found = [one for one in of.heads if one.layer == layer and head in (None, one.head)]
        if not found:
            if layer not in of.layers:
                raise RefusalError(f"There is no layer {layer} here: there are {ranges(of.layers)}.")
            there = ranges(one.head for one in of.heads if one.layer == layer)
            raise RefusalError(f"There is no head {head} in layer {layer}: there are {there}.")
        queries, keys = len(self.tokens(of.queries)), len(self.tokens(of.keys))
        total = np.zeros((queries, keys), np.float32)
        for one in found:
            total += restored(*unpacked(one.packed, queries, keys, causal=of.causal), signed=one.signed)
        return total / np.float32(len(found))

    def to_json(self) -> dict[str, Any]:
        """All but the maps themselves, which nobody reads in a terminal."""
        bare = [replace(part, heads=tuple(replace(one, packed="") for one in part.heads)) for part in self.parts]
        said = super(View, replace(self, parts=tuple(bare))).to_json()
        for part in said["parts"]:
            for one in part["heads"]:
                del one["packed"]
        return said

    def document(self) -> dict[str, Any]:
        return Record.to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> View:
        """What `document` gave, read back; a `FieldError` names what does not belong there."""
        found = super().from_json(data)
        names = [one.name for one in found.inputs]
        for number, part in enumerate(found.parts):
            if part.queries not in names or part.keys not in names:
                raise FieldError(f"parts[{number}]: its tokens are not among the inputs")
            queries, keys = len(found.tokens(part.queries)), len(found.tokens(part.keys))
            if part.causal and queries != keys:
                raise FieldError(f"parts[{number}].causal: queries and keys are not equally many")
            for place, one in enumerate(part.heads):
                try:
                    unpacked(one.packed, queries, keys, causal=part.causal)
                except ValueError as error:
                    raise FieldError(f"parts[{number}].heads[{place}].packed: {error}") from error
        if len(set(names)) < len(names) or found.opened.part not in [part.name for part in found.parts]:
            raise FieldError("opened: a part that is there is needed, and inputs with names of their own")
        opened = found.part()
        if (found.opened.layer, found.opened.head) not in {
            pair for one in opened.heads for pair in ((one.layer, one.head), (one.layer, None))
        }:
            raise FieldError("opened: a layer and a head that are there are needed")
        return found

    def table(self) -> pandas.DataFrame:
        """One row for each head."""
        import pandas

        return pandas.DataFrame(
            [
                {
                    "part": part.name,
                    "layer": one.layer,
                    "head": one.head,
                    "entropy": one.entropy,
                    "first": one.first,
                    "own": one.own,
                    "previous": one.previous,
                    "error": one.error,
                }
                for part in self.parts
                for one in part.heads
            ]
        )

    def __repr__(self) -> str:
        tokens = sum(len(one.tokens) for one in self.inputs)
        return f"<View of {self.model}: {len(self.heads)} heads on {tokens} tokens, within {self.error:.2g}>"
