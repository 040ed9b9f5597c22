"""Attention statistics in one pass over cache-sized tiles: any kind of logit, in O(n d) memory.

All statistics of a tile are taken while it is in cache, so the whole set costs about twice the matrix product
that made it.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.overlap import cosines, head_overlap, sample_rows
from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import VANISHING, cut, pattern_strips, tile_shape, width

ROW_STATISTICS = (
    "row_entropy",
    "row_sum_squares",
    "row_mass",
    "row_peak",
    "first_key_mass",
    "self_mass",
    "previous_mass",
    "mean_distance",
)


def blocked_statistics(
    scores: Scores,
    want: Collection[str],
    *,
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    dtype: torch.dtype,
    lse: Float[Tensor, "batch heads query"] | None,
) -> dict[str, Float[Tensor, "..."]]:
    """The wanted statistics (any of ROW_STATISTICS, `received`, `head_overlap`), added up tile by tile."""
    batch, heads, rows, _ = scores.query.shape
    device = scores.query.device
    names = [name for name in ROW_STATISTICS if name in want]
    table = torch.zeros(len(names), batch, heads, rows, dtype=dtype, device=device)
    # A column is a sum of as many parts as there are strips: float64 keeps that sum as good as its parts.
    received = torch.zeros(batch, heads, key_mask.shape[1], dtype=torch.float64, device=device)
    first_key = key_mask.to(torch.int8).argmax(-1).tolist()
    distances = _Distances(scores, dtype)
    # A tile that holds whole sequences has the sampled rows of all heads in it; else they are computed apart.
    whole = tile_shape(scores, dtype)[1:] == (heads, rows, key_mask.shape[1])
    compare = _Comparison(query_mask, heads, dtype) if "head_overlap" in want and whole else None
    every = slice(0, len(names))
    for strip, tiles in pattern_strips(scores, dtype, lse=lse, query_mask=query_mask):
        # One cut through the table a strip: slicing for every statistic and tile would cost more than the
        # sums.
        columns = cut(table, every, strip.batch, strip.head, strip.row).unbind(0)
        row = dict(zip(names, columns, strict=True))
        for key, pattern, log in tiles:
            if "row_entropy" in row:
                # -sum_j A_ij ln A_ij; with learned sinks over the real keys only, of a row that sums to less
                # than 1
                row["row_entropy"].sub_(torch.mul(pattern, log, out=log).sum(-1))
            if "row_sum_squares" in row:
                row["row_sum_squares"].add_(torch.linalg.vector_norm(pattern, dim=-1).square_())
            if "row_mass" in row:
                row["row_mass"].add_(pattern.sum(-1))
            if "row_peak" in row:
                row["row_peak"].copy_(torch.maximum(row["row_peak"], pattern.amax(-1)))
            if "first_key_mass" in row:
                for place, first in enumerate(first_key[strip.batch]):
                    if key.start <= first < key.stop:
                        row["first_key_mass"][place].add_(pattern[place, ..., first - key.start])
            if "self_mass" in row:
                _add_diagonal(row["self_mass"], pattern, strip.row.start - key.start)
            if "previous_mass" in row:
                _add_diagonal(row["previous_mass"], pattern, strip.row.start - key.start - 1)
            if "mean_distance" in row:
                distances.add(row["mean_distance"], pattern, strip.row, key, spare=log)
            if "received" in want:
                cut(received, strip.batch, strip.head, key).add_(pattern.sum(-2))
            if compare is not None:
                compare.add(pattern, strip.batch)
    found = dict(zip(names, table.unbind(0), strict=True))
    if "received" in want:
        found["received"] = received.to(dtype)
    found = {name: torch.where(value > VANISHING, value, 0.0) for name, value in found.items()}
    if compare is not None:
        found["head_overlap"] = cosines(compare.gram)
    elif "head_overlap" in want:
        found["head_overlap"] = head_overlap(scores, query_mask=query_mask, dtype=dtype, lse=lse)
    return found


def _add_diagonal(
    total: Float[Tensor, "batch heads rows"], pattern: Float[Tensor, "batch heads rows keys"], shift: int
) -> None:
    """Add to row r the mass on key r + shift, where the tile has it."""
    skip = max(0, -shift)
    if skip < pattern.shape[2] and shift < pattern.shape[3]:
        mass = pattern.diagonal(shift, -2, -1)
        total[..., skip : skip + mass.shape[-1]].add_(mass)


class _Comparison:
    """Inner products of the heads' sampled rows, from tiles that hold whole sequences."""

    def __init__(self, query_mask: Bool[Tensor, "batch query"], heads: int, dtype: torch.dtype) -> None:
        self.gram = torch.zeros(len(query_mask), heads, heads, dtype=dtype, device=query_mask.device)
        self._rows = [
            row[real].tolist() for row, real in zip(*(x.cpu() for x in sample_rows(query_mask)), strict=True)
        ]

    def add(self, pattern: Float[Tensor, "some_batch heads rows keys"], batch: slice) -> None:
        for place, rows in enumerate(self._rows[batch]):
            if not rows:
                continue
            step = rows[1] - rows[0] if len(rows) > 1 else 1
            even = rows == list(range(rows[0], rows[-1] + 1, step))  # else there are holes in the mask
            sample = pattern[place, :, slice(rows[0], rows[-1] + 1, step) if even else rows]
            flat = sample.reshape(len(sample), -1)
            torch.mm(flat, flat.mT, out=self.gram[batch.start + place])


class _Distances:
    """sum_j A_ij |i - j| over tiles.

    |i - j| is a row number minus a key number, or the reverse, wherever the sign of i - j is the same in the
    whole tile: there the sum is a matrix-vector product. With i0 the first row, |i - j| = (i0 - j) + (i - i0)
    before the rows' own keys and (j - i0) - (i - i0) after them; both count from nearby, so no large numbers
    cancel. Only the keys that face the rows themselves need the product with the matrix |i - j|, and under a
    causal band not even those: there |i - j| = i - j everywhere.
    """

    def __init__(self, scores: Scores, dtype: torch.dtype) -> None:
        self._size = max(scores.query.shape[2], scores.key.shape[2])
        self._signed = scores.band.ahead == 0
        self._count = torch.arange(-self._size, self._size + 1, dtype=dtype, device=scores.query.device)
        self._back = self._count.flip(0)
        self._facing: dict[tuple[int, int, int], Tensor] = {}

    def add(
        self,
        total: Float[Tensor, "batch heads rows"],
        pattern: Float[Tensor, "batch heads rows keys"],
        row: slice,
        key: slice,
        *,
        spare: Float[Tensor, "batch heads rows keys"],
    ) -> None:
        stop = min(key.stop, row.stop)
        left = stop if self._signed else min(max(row.start, key.start), key.stop)
        right = max(stop, key.start)
        into = self._count[self._size : self._size + width(row)]
        if key.start < left:
            before = pattern[..., : left - key.start]
            away = self._back[self._size - row.start + key.start :][: left - key.start]
            total.add_(before @ away).addcmul_(before.sum(-1), into)
        if left < right:
            facing = slice(left - key.start, right - key.start)
            apart = self._apart(width(row), left - row.start, right - left)
            total.add_(torch.mul(pattern[..., facing], apart, out=spare[..., facing]).sum(-1))
        if right < key.stop and not self._signed:
            after = pattern[..., right - key.start :]
            away = self._count[self._size + right - row.start :][: key.stop - right]
            total.add_(after @ away).addcmul_(after.sum(-1), into, value=-1)

    def _apart(self, rows: int, start: int, keys: int) -> Float[Tensor, "rows keys"]:
        """|i - j| for i = 0.. and j = start.., made once for each shape."""
        shape = (rows, start, keys)
        if shape not in self._facing:
            zero = self._size
            i, j = self._count[zero : zero + rows], self._count[zero + start : zero + start + keys]
            self._facing[shape] = (i[:, None] - j).abs_()
        return self._facing[shape]
