"""The maps of one attention call, made in row blocks from queries and keys, and kept in eight bits a weight.

A block of rows is all there is in floating point at any time. While it is there its product with the values is compared
with what the module really passed on: the same comparison as the verifier's, on this very text and at its whole length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import entr
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.tapping.verify import LOOSE
from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import VANISHING, pattern_strips
from attnscope.records.quantised import packed, quantised, restored
from attnscope.records.view import HeadMap
from attnscope.trace.frame import AttentionFrame


@dataclass(frozen=True)
class LayerMaps:
    """What is kept of one call, and how far A V is from what the model made of it, relative to its largest."""

    heads: tuple[HeadMap, ...]
    disagreement: float


def layer_maps(frame: AttentionFrame, *, causal: bool, heads: Sequence[int]) -> LayerMaps:
    """Maps of the heads that are asked for, of a batch of one sequence; padding is left out of them.

    A causal map that looks ahead, or a product that is not the model's own, is refused.
    """
    rows, keys = (torch.nonzero(mask[0]).flatten().cpu().numpy() for mask in (frame.query_mask, frame.key_mask))
    signed = frame.scores.pattern is not None and bool((frame.scores.pattern < 0).any())
    kept = {head: _Kept(len(rows), len(keys), signed) for head in heads}
    off, size = 0.0, 0.0
    for first_head, first_row, block in row_blocks(frame.scores):
        off = max(off, _off(frame, block, first_head, first_row))
        real = np.flatnonzero((rows >= first_row) & (rows < first_row + block.shape[1]))
        chosen = block[:, rows[real] - first_row][:, :, keys]
        for place in range(len(chosen)):
            if first_head + place in kept:
                kept[first_head + place].add(chosen[place], int(real[0]) if len(real) else 0)
    passed_on = frame.mixed if frame.attended is None else frame.attended
    size = float(passed_on[0, frame.query_mask[0]].abs().max())
    if frame.holds is not None:  # signed weights cancel, and what is left has the rounding of what was mixed
        size = max(size, float(frame.value[0].abs().max()))
    disagreement = off / max(size, 1e-30)
    if not disagreement <= LOOSE.get(frame.mixed.dtype, 3e-2):
        raise RefusalError(
            f"Maps of layer {frame.layer} cannot be shown honestly: weights times values differ from what the model "
            f"mixed by {disagreement:.1e} of the largest. Choose other layers with --layer."
        )
    if causal and any(one.ahead for one in kept.values()):
        raise RefusalError(
            f"Layer {frame.layer} looks ahead here, which it did not where it was probed: give a text that the model "
            "reads from left to right."
        )
    return LayerMaps(
        tuple(one.finished(frame.layer, head, causal) for head, one in kept.items()),
        disagreement,
    )


def row_blocks(scores: Scores) -> Iterator[tuple[int, int, Float[np.ndarray, "some_heads some_rows key"]]]:
    """The pattern of the first sequence by blocks of some heads and some rows: (first head, first row, weights)."""
    dtype = torch.float64 if scores.query.dtype == torch.float64 else torch.float32
    lse = scores.lse if scores.lse is not None and scores.lse.dtype.itemsize >= dtype.itemsize else None
    keys = scores.key.shape[2]
    for strip, tiles in pattern_strips(scores, dtype, lse=lse):
        shape = (strip.head.stop - strip.head.start, strip.row.stop - strip.row.start, keys)
        block = np.zeros(shape, np.float64 if dtype == torch.float64 else np.float32)
        for key, pattern, _ in tiles:
            block[:, :, key] = pattern[0].cpu().numpy()
        block[np.abs(block) <= VANISHING] = 0.0  # what is forbidden weighs 2e-35 in a tile
        yield strip.head.start, strip.row.start, block


def _off(frame: AttentionFrame, block: np.ndarray, first_head: int, first_row: int) -> float:
    """The largest difference between these rows times the values and what the module passed on, in float64."""
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
            f"Layer {frame.layer} computes what is not a number on this text: try --dtype float64, or look at the "
            "weights."
        )
    return float(difference.max()) if difference.numel() else 0.0


class _Kept:
    """Codes of one head as blocks of its rows come, and what is added up of them. Mutable while a layer is read."""

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
            before = rows[1:, begin:] if begin == 0 else rows[:, begin - 1 :]  # the first token has none before it
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
