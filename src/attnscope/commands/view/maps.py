"""Compute attention maps in blocks of rows from queries and keys, and store them in eight bits per weight.

Only one block of rows exists in floating point at a time. Its product with the values is compared with the output of
the module, as the verifier does, on the whole text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import entr
from torch import Tensor

from attnscope.commands.explain.record import Input
from attnscope.commands.view.record import HeadMap, Part, packed, quantised, restored
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.core.words import count, numeral
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.anatomy.example import LONG, of_tokens_only
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_input import before_patches
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import word
from attnscope.hf.tapping.tap import Frame
from attnscope.hf.tapping.verify import LOOSE
from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import VANISHING, pattern_strips


@dataclass(frozen=True)
class LayerMaps:
    """The maps of one call, and the largest error of weights times values, relative to the model's largest output."""

    heads: tuple[HeadMap, ...]
    disagreement: float


def layer_maps(frame: AttentionFrame, *, causal: bool, heads: Sequence[int]) -> LayerMaps:
    """Return the maps of these heads, for a batch of one sequence, without padding.

    Refuse a causal map that looks ahead, and weights that do not give the model's output.
    """
    rows, keys = (torch.nonzero(mask[0]).flatten().cpu().numpy() for mask in (frame.query_mask, frame.key_mask))
    signed = frame.scores.pattern is not None and bool((frame.scores.pattern < 0).any())
    kept = {head: _Kept(len(rows), len(keys), signed) for head in heads}
    off = 0.0
    for first_head, first_row, block in row_blocks(frame.scores):
        off = max(off, _off(frame, block, first_head, first_row))
        real = np.flatnonzero((rows >= first_row) & (rows < first_row + block.shape[1]))
        chosen = block[:, rows[real] - first_row][:, :, keys]
        for number in range(len(chosen)):
            if first_head + number in kept:
                kept[first_head + number].add(chosen[number], int(real[0]) if len(real) else 0)
    passed_on = frame.mixed if frame.attended is None else frame.attended
    size = float(passed_on[0, frame.query_mask[0]].abs().max())
    if frame.holds is not None:  # signed weights cancel, but the rounding errors of the values do not
        size = max(size, float(frame.value[0].abs().max()))
    disagreement = off / max(size, 1e-30)
    if not disagreement <= LOOSE.get(frame.mixed.dtype, 3e-2):
        raise RefusalError(
            f"The maps of block {frame.layer} would be wrong: weights times values differ from the model's output by "
            f"{disagreement:.1e} of its largest entry. Choose other blocks with `block=`."
        )
    if causal and any(head.ahead for head in kept.values()):
        raise RefusalError(
            f"Block {frame.layer} looks ahead on this text, although it was causal when it was probed: give a text "
            "that the model reads from left to right."
        )
    return LayerMaps(tuple(map_.finished(frame.layer, head, causal) for head, map_ in kept.items()), disagreement)


def row_blocks(scores: Scores) -> Iterator[tuple[int, int, Float[np.ndarray, "some_heads some_rows key"]]]:
    """Yield the pattern of the first sequence by blocks: (first head, first row, weights)."""
    dtype = torch.float64 if scores.query.dtype == torch.float64 else torch.float32
    lse = scores.lse if scores.lse is not None and scores.lse.dtype.itemsize >= dtype.itemsize else None
    keys = scores.key.shape[2]
    for strip, tiles in pattern_strips(scores, dtype, lse=lse):
        shape = (strip.head.stop - strip.head.start, strip.row.stop - strip.row.start, keys)
        block = np.zeros(shape, np.float64 if dtype == torch.float64 else np.float32)
        for key, pattern, _ in tiles:
            block[:, :, key] = pattern[0].cpu().numpy()
        block[np.abs(block) <= VANISHING] = 0.0  # a hidden key weighs 2e-35 in a tile
        yield strip.head.start, strip.row.start, block


def _off(frame: AttentionFrame, block: np.ndarray, first_head: int, first_row: int) -> float:
    """Return the largest difference between these rows times the values and the module's own output, in float64."""
    heads, rows, _ = block.shape
    sharing = frame.mixed.shape[2] // frame.value.shape[1]
    chosen = [head // sharing for head in range(first_head, first_head + heads)]
    value = frame.value[0, chosen].detach().double().cpu()
    passed_on: Tensor = frame.mixed if frame.attended is None else frame.attended
    mine = torch.from_numpy(block).double() @ value
    theirs = passed_on[0, first_row : first_row + rows, first_head : first_head + heads].detach().double().cpu()
    real = frame.query_mask[0, first_row : first_row + rows].cpu()
    difference = (mine.transpose(0, 1) - theirs)[real].abs()
    if not bool(difference.isfinite().all()):
        raise RefusalError(
            f"Block {frame.layer} computes NaN or infinite numbers on this text: try `dtype='float64'`, or check the "
            "weights."
        )
    return float(difference.max()) if difference.numel() else 0.0


class _Kept:
    """The codes of one head and sums over its rows, collected block by block."""

    def __init__(self, queries: int, keys: int, signed: bool) -> None:
        self.codes = np.zeros((queries, keys), np.uint8)
        self.scales = np.zeros(queries, np.float32)
        self.signed, self.square = signed, queries == keys
        self.error, self.ahead = 0.0, False
        self.entropy, self.first, self.own, self.previous = 0.0, 0.0, 0.0, 0.0

    def add(self, rows: Float[np.ndarray, "some_rows key"], begin: int) -> None:
        end = begin + len(rows)
        codes, scales = quantised(rows, signed=self.signed)
        self.codes[begin:end], self.scales[begin:end] = codes, scales
        if rows.size:
            self.error = max(self.error, float(np.abs(restored(codes, scales, signed=self.signed) - rows).max()))
        self.ahead |= bool(np.triu(rows, begin + 1).any())
        self.entropy += 0.0 if self.signed else float(entr(rows).sum())
        self.first += float(rows[:, 0].sum())
        if self.square:
            self.own += float(np.trace(rows, begin))
            before = rows[1:, begin:] if begin == 0 else rows[:, begin - 1 :]  # nothing is before the first token
            self.previous += float(np.trace(before))

    def finished(self, layer: int, head: int, causal: bool) -> HeadMap:
        many = max(len(self.scales), 1)
        return HeadMap(
            layer=layer,
            head=head,
            error=self.error,
            entropy=None if self.signed else self.entropy / many,
            first=self.first / many,
            own=self.own / many if self.square else None,
            previous=self.previous / many if self.square else None,
            packed=packed(self.codes, self.scales, causal=causal),
            signed=self.signed,
        )


# Bytes of a page for one weight, deflated and in base64. SmolLM2 needs 0.65 on 128 tokens and 0.33 on 512 (bench.view),
# because in longer rows most weights are 0.
BYTES = 0.5
MOST_BEFORE = 16  # most tokens before the patches of a picture: [CLS], registers


@dataclass(frozen=True)
class Shape:
    """The properties that all maps of one part share."""

    stack: str
    site: str
    keys_from: str
    queries: int
    keys: int
    causal: bool

    @property
    def entries(self) -> int:
        return self.queries * (self.queries + 1) // 2 if self.causal else self.queries * self.keys


@dataclass
class Gathered:
    """Collect maps by part while the model runs."""

    structure: Anatomy
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    max_mb: float
    progress: Advance
    maps: dict[Shape, list[HeadMap]] = field(default_factory=dict)
    windows: dict[Shape, set[int | None]] = field(default_factory=dict)
    disagreement: float = 0.0
    done: int = 0
    size: int = 0  # bytes so far
    seen: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def receive(self, frame: Frame) -> None:
        if not isinstance(frame, AttentionFrame):
            return
        call = (frame.stack, frame.site, frame.layer)
        self.seen[call] += 1
        if frame.mixed.shape[0] != 1 or self.seen[call] > 1:
            raise RefusalError(
                f"Block {frame.layer} of {self.structure.model_class} attends within windows or chunks, and a view "
                "needs one sequence of tokens that attend to each other: choose another model."
            )
        self.progress("layers", self.done, len(self.structure.sites))
        self.done += 1
        if frame.layer not in self.layers:
            return
        site = next(s for s in self.structure.sites if s.key == call)
        queries, keys = int(frame.query_mask[0].sum()), int(frame.key_mask[0].sum())
        shape = Shape(*call[:2], site.keys_from, queries, keys, site.causal and frame.site == "self")
        if not (heads := [head for head in range(frame.mixed.shape[2]) if head in self.heads]):
            return
        self._refuse_too_large(shape, len(heads))
        made = layer_maps(frame, causal=shape.causal, heads=heads)
        self.maps.setdefault(shape, []).extend(made.heads)
        self.windows.setdefault(shape, set()).add(frame.scores.window)
        self.disagreement = max(self.disagreement, made.disagreement)
        self.size += sum(len(head.packed) for head in made.heads)

    def refuse_long_text(self, batch: Mapping[str, Any]) -> None:
        """Refuse a long text before the model runs on it."""
        for site in self.structure.sites if of_tokens_only(batch) else ():
            ids = batch.get(f"{site.stack}_input_ids", batch.get("input_ids"))
            heads = sum(head in self.heads for head in range(site.heads))
            if site.site == "self" and site.layer in self.layers and heads and ids is not None and len(ids[0]) > LONG:
                shape = Shape(*site.key[:2], site.keys_from, len(ids[0]), len(ids[0]), site.causal)
                self._refuse_too_large(shape, heads)

    def _refuse_too_large(self, shape: Shape, heads: int) -> None:
        """Refuse a page above `max_mb`, estimated from typical maps at first, then from the maps of the same part."""
        sites = [s for s in self.structure.sites if s.layer in self.layers]
        layers = sum(s.stack == shape.stack and s.site == shape.site for s in sites)
        before = self.maps.get(shape, [])
        left = heads * layers - len(before)
        each = BYTES * shape.entries if not before else sum(len(head.packed) for head in before) / len(before)
        estimate = (self.size + left * each) / 1e6
        if estimate > self.max_mb:
            size = f"{count(layers, 'block')} x {count(heads, 'head')} x {shape.queries:,} tokens"
            fits = int(shape.queries * sqrt(self.max_mb / estimate))
            raise RefusalError(
                f"The page would have about {numeral(estimate, 2)} MB ({size}), above the limit of {self.max_mb:g}: "
                f"shorten the text to about {fits:,} tokens, choose blocks or heads (`block='0-3'`), or allow more "
                "with `max_mb=`."
            )


def parts_of(gathered: Gathered, structure: Anatomy) -> tuple[Part, ...]:
    """Return the maps as named parts: `decoder` attends to itself, `decoder cross` to the encoder."""
    if not gathered.maps:
        raise RefusalError(f"{structure.model_class} has no such head there: choose with `block=` and `head=`.")
    names = [shape.stack if shape.site == "self" else f"{shape.stack} {shape.site}" for shape in gathered.maps]
    inputs = _names(gathered)
    parts = []
    for name, (shape, maps) in zip(names, gathered.maps.items(), strict=True):
        size = f" {shape.queries} x {shape.keys}{'' if shape.causal else ' both ways'}"
        windows = gathered.windows[shape]
        part = Part(
            name=name if names.count(name) == 1 else f"{name}{size}",
            queries=inputs[shape.stack, shape.queries],
            keys=inputs[shape.keys_from, shape.keys],
            causal=shape.causal,
            window=next(iter(windows)) if len(windows) == 1 else None,
            heads=tuple(maps),
        )
        parts.append(part)
    return tuple(parts)


def _names(gathered: Gathered) -> dict[tuple[str, int], str]:
    """Return the names of token sequences: the stack, and the length too if the stack has several lengths."""
    rows = dict.fromkeys(
        pair for shape in gathered.maps for pair in ((shape.stack, shape.queries), (shape.keys_from, shape.keys))
    )
    lengths = Counter(stack for stack, _ in rows)
    return {row: row[0] if lengths[row[0]] == 1 else f"{row[0]} of {row[1]}" for row in rows}


def inputs_of(gathered: Gathered, loaded: Loaded, read: Reading) -> tuple[Input, ...]:
    """Return the tokens of every sequence, as words or (patches, sound) as numbers."""
    return tuple(Input(name, _words(loaded, read, *row)) for row, name in _names(gathered).items())


def _words(loaded: Loaded, read: Reading, stack: str, tokens: int) -> tuple[str, ...]:
    ids = {
        name: value[0]
        for name, value in read.batch.items()
        if name.endswith("input_ids") and getattr(value, "ndim", 0) == 2 and value.shape[1] == tokens
    }
    own = [name for name in ids if name.startswith(stack)]
    if not own and stack != "decoder":
        own = [name for name in ids if name == "input_ids"]
    if not own:
        return _places(loaded, read, tokens)
    return tuple(word(loaded.tokenizer, int(number)) for number in ids[own[0]])


def _places(loaded: Loaded, read: Reading, tokens: int) -> tuple[str, ...]:
    """Return names of patches by row and column, after [CLS] and registers; without a known grid, numbers."""
    grid = next((scene.grid for scene in read.scenes if scene.grid is not None), None)
    if grid is None or not 0 <= tokens - grid[0] * grid[1] <= MOST_BEFORE:
        return tuple(str(place) for place in range(tokens))
    before = before_patches(loaded.model, tokens - grid[0] * grid[1])
    return (*before, *(f"{row},{column}" for row in range(grid[0]) for column in range(grid[1])))
