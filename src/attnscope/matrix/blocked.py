"""Attention statistics in one pass over cache-sized tiles: any kind of logit, in O(n d) memory.

All statistics of a tile are computed while it is in cache, so the whole set costs about twice its matrix product.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.scores import KeyMask, QueryMask, RowValues, Scores, Statistics
from attnscope.matrix.similarity import head_overlap, mean_cosines, sample_rows
from attnscope.matrix.spans import DistanceMass, sink_keys
from attnscope.matrix.tiles import FLOOR, FORBIDDEN, VANISHING, StripValues, TileValues, pattern_strips, sees_any
from attnscope.matrix.tiling import Strip, cut, tile_shape, width

ROW_STATISTICS = (
    "row_entropy",
    "row_sum_squares",
    "row_mass",
    "row_peak",
    "row_top_logit",
    "first_key_mass",
    "self_mass",
    "previous_mass",
    "mean_distance",
)


def blocked_statistics(
    scores: Scores,
    want: Collection[str],
    *,
    query_mask: QueryMask,
    key_mask: KeyMask,
    dtype: torch.dtype,
    lse: RowValues | None,
) -> Statistics:
    """Return the wanted statistics (those of ROW_STATISTICS and of whole heads), summed tile by tile."""
    batch, heads, rows, _ = scores.query.shape
    # With the log-sum-exp, rows are known to sum to 1, unless there is a learned sink.
    known = lse is not None and scores.sinks is None and scores.pattern is None
    mass = sees_any(lse, query_mask).to(dtype) if lse is not None and known else None
    # A given pattern determines only differences of logits.
    top = _TopLogits(scores, dtype) if "row_top_logit" in want and scores.pattern is None else None
    apart = ("row_top_logit", "row_mass" if known else "")
    names = [name for name in ROW_STATISTICS if name in want and name not in apart]
    table = torch.zeros(len(names), batch, heads, rows, dtype=dtype, device=scores.query.device)
    # A column is a sum over all strips: float64 keeps that sum as precise as its parts.
    received = torch.zeros(batch, heads, key_mask.shape[1], dtype=torch.float64, device=table.device)
    first_key = key_mask.to(torch.int8).argmax(-1).tolist()
    distances = _Distances(scores, dtype)
    # A tile of whole sequences holds the sampled rows of all heads; otherwise they are computed separately.
    whole = tile_shape(scores, dtype)[1:] == (heads, rows, key_mask.shape[1])
    compare = _Comparison(query_mask, heads, dtype) if "head_overlap" in want and whole else None
    noted = None if top is None else top.subtracted
    spans = DistanceMass(scores, first_key) if "mass_by_distance" in want else None
    counts = "received" in want or spans is not None
    if spans is not None and noted is None and lse is None:
        noted = table.new_zeros(batch, heads, rows)
    for strip, tiles in pattern_strips(scores, dtype, lse=lse, query_mask=query_mask, noted=noted):
        # Cut the table once per strip: slicing for every statistic and tile would cost more than the sums.
        columns = cut(table, slice(0, len(names)), strip.batch, strip.head, strip.row).unbind(0)
        row = dict(zip(names, columns, strict=True))
        for key, pattern, log in tiles:
            _add_to_rows(row, pattern, log, strip, key, first_key=first_key, distances=distances)
            if top is not None:
                top.add(log, strip)
            if counts:
                cut(received, strip.batch, strip.head, key).add_(pattern.sum(-2))
            if compare is not None:
                compare.add(pattern, strip.batch)
            if spans is not None:  # last, because it overwrites the tile
                spans.add(pattern, strip, key)
    values = dict(zip(names, table.unbind(0), strict=True))
    if mass is not None and "row_mass" in want:
        values["row_mass"] = mass
    if "received" in want:
        values["received"] = received.to(dtype)
    if spans is not None:
        sinks = sink_keys(received, query_mask, key_mask)
        subtracted = noted if lse is None else lse
        values["mass_by_distance"] = spans.by_distance(sinks, lse=subtracted, query_mask=query_mask).to(dtype)
    values = {name: torch.where(value <= VANISHING, 0.0, value) for name, value in values.items()}  # NaN stays
    if top is not None:
        values["row_top_logit"] = top.logits()
    if compare is not None:
        values["head_overlap"] = mean_cosines(compare.gram, compare.real)
    elif "head_overlap" in want:
        values["head_overlap"] = head_overlap(scores, query_mask=query_mask, dtype=dtype, lse=lse)
    return values


def _add_to_rows(
    row: dict[str, StripValues],
    pattern: TileValues,
    log: TileValues,
    strip: Strip,
    key: slice,
    *,
    first_key: list[int],
    distances: _Distances,
) -> None:
    """Add a tile to the statistics of its rows."""
    if "row_entropy" in row:
        # -sum_j A_ij ln A_ij over the real keys; with learned sinks the row sums to less than 1.
        row["row_entropy"].sub_(row_dot(pattern, log))
    if "row_sum_squares" in row:
        row["row_sum_squares"].add_(row_dot(pattern, pattern))
    if "row_mass" in row:
        row["row_mass"].add_(pattern.sum(-1))
    if "row_peak" in row:
        row["row_peak"].copy_(torch.maximum(row["row_peak"], pattern.amax(-1)))
    if "first_key_mass" in row:
        _add_column(row["first_key_mass"], pattern, first_key[strip.batch], key)
    if "self_mass" in row:
        _add_diagonal(row["self_mass"], pattern, strip.row.start - key.start)
    if "previous_mass" in row:
        _add_diagonal(row["previous_mass"], pattern, strip.row.start - key.start - 1)
    if "mean_distance" in row:
        row["mean_distance"].add_(distances.dot(pattern, strip.row, key))


def row_dot(a: TileValues, b: Float[Tensor, "... rows keys"]) -> StripValues:
    """Return sum_j a_ij b_ij. NumPy needs one pass, torch a product and a sum."""
    if a.device.type == "cpu":
        return torch.from_numpy(np.vecdot(a.numpy(), b.numpy()))
    return (a * b).sum(-1)


def _add_column(total: StripValues, pattern: TileValues, columns: list[int], key: slice) -> None:
    """Add to every row the mass on its sequence's column, if the tile holds it."""
    for place, column in enumerate(columns):
        if key.start <= column < key.stop:
            total[place].add_(pattern[place, ..., column - key.start])


def _add_diagonal(total: StripValues, pattern: TileValues, shift: int) -> None:
    """Add to row r the mass on key r + shift, if the tile holds it."""
    skip = max(0, -shift)
    if skip < pattern.shape[2] and shift < pattern.shape[3]:
        mass = pattern.diagonal(shift, -2, -1)
        total[..., skip : skip + mass.shape[-1]].add_(mass)


class _TopLogits:
    """The largest logit of every row: the largest ln A, plus the log-sum-exp that was subtracted from the logits.

    This is right even if an imprecise log-sum-exp was subtracted.
    """

    def __init__(self, scores: Scores, dtype: torch.dtype) -> None:
        self._log = torch.full(scores.query.shape[:3], FLOOR, dtype=dtype, device=scores.query.device)
        self.subtracted = torch.full_like(self._log, -FORBIDDEN)

    def add(self, log: TileValues, strip: Strip) -> None:
        rows = cut(self._log, strip.batch, strip.head, strip.row)
        torch.maximum(rows, log.amax(-1), out=rows)

    def logits(self) -> RowValues:
        return torch.where(self.subtracted >= -FORBIDDEN / 10, 0.0, self._log + self.subtracted)


class _Comparison:
    """Inner products of the heads in each sampled row, from tiles that hold whole sequences."""

    def __init__(self, query_mask: QueryMask, heads: int, dtype: torch.dtype) -> None:
        self._rows, self.real = sample_rows(query_mask)
        self.gram = torch.zeros(*self._rows.shape, heads, heads, dtype=dtype, device=query_mask.device)

    def add(self, pattern: Float[Tensor, "some_batch heads rows keys"], batch: slice) -> None:
        rows = self._rows[batch]
        place = torch.arange(len(rows), device=rows.device)[:, None]
        sample = pattern.transpose(1, 2)[place, rows]  # [some_batch, sampled, heads, keys]
        torch.matmul(sample, sample.mT, out=self.gram[batch])


class _Distances:
    """The distances |i - j| on a tile. They depend only on j - i, so one vector of 2 n numbers serves every tile.

    A tile is a strided view of that vector whose rows step back by one number each.
    """

    def __init__(self, scores: Scores, dtype: torch.dtype) -> None:
        self._zero = max(scores.query.shape[2], scores.key.shape[2])
        apart = torch.arange(-self._zero, self._zero + 1, dtype=dtype, device=scores.query.device).abs_()
        self._apart = apart.numpy() if apart.device.type == "cpu" else apart
        self._views: dict[tuple[int, int, int], np.ndarray] = {}

    def dot(self, pattern: TileValues, row: slice, key: slice) -> StripValues:
        """Return sum_j A_ij |i - j|."""
        if isinstance(self._apart, Tensor):
            i = torch.arange(row.start, row.stop, device=pattern.device)[:, None]
            j = torch.arange(key.start, key.stop, device=pattern.device)
            return row_dot(pattern, self._apart[self._zero + j - i])
        place = (width(row), width(key), key.start - row.start)
        if place not in self._views:
            step = self._apart.itemsize
            start = self._apart[self._zero + place[2] :]
            self._views[place] = np.lib.stride_tricks.as_strided(start, place[:2], (-step, step), writeable=False)
        return torch.from_numpy(np.vecdot(pattern.numpy(), self._views[place]))
