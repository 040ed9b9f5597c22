"""An attention pattern read in tiles that fit in cache: ln A and A, a few rows against a few keys at a time.

With each row's log-sum-exp known, a tile of A needs nothing from its neighbours: A_ij = exp(s_ij - lse_i). So every sum
over rows or columns of A is a sum over tiles, in memory that does not grow with the sequence. One tile costs one matrix
product (added to the bias, if any) and one exponential. Tiles that position or mask forbid as a whole are never
computed; query heads that share a key head share the product.

An unknown log-sum-exp is computed first, from the same tiles: in place if a row's keys fit in one tile, else by a
separate sweep.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.scores import QueryMask, RowValues, Scores
from attnscope.matrix.tiling import Strip, Tile, cut, strips, width

# Finite stand-in for a logit of -inf, so that differences and products with it are never NaN.
FORBIDDEN = -1e30
# Tiles of ln A are cut off here: vectorised exponentials become 100 times slower as soon as a result is subnormal in
# float32. A forbidden key thus weighs 2e-35 in a tile, and sums below VANISHING count as 0.
FLOOR = -80.0
VANISHING = 1e-28
TileValues = Float[Tensor, "some_batch some_heads rows keys"]
StripValues = Float[Tensor, "some_batch some_heads rows"]


class LogPattern:
    """Fill tiles of s - lse, in a buffer that the next tile reuses."""

    def __init__(self, scores: Scores, dtype: torch.dtype) -> None:
        self.scores = scores
        self.dtype = dtype
        self.query = scores.query.detach().to(dtype)
        self.key = scores.key.detach().to(dtype)
        self._buffers: dict[str, Tensor] = {}
        self._zero = torch.zeros((), dtype=dtype, device=self.query.device)
        self._edges: dict[tuple[int, int, int], Tensor] = {}
        self.lse: RowValues | None = None  # if given, receives the number subtracted from each row

    def logits(self, tile: Tile, lse: StripValues | None) -> TileValues | None:
        """Return s - lse on a tile, about FORBIDDEN where a key may not be seen; None if no key may be seen."""
        offset, empty = self._offset(tile)
        if empty:
            return None
        scores, sharing = self.scores, self.scores.sharing
        q = cut(self.query, tile.batch, tile.head, tile.row)
        k = cut(self.key, tile.batch, slice(tile.head.start // sharing, tile.head.stop // sharing), tile.key)
        sequences, heads, rows, dim = q.shape
        keys = k.shape[2]
        out = self._buffer("log", q.shape[:3] + k.shape[2:3])
        groups = sequences * heads // sharing
        product = out.view(groups, sharing * rows, keys)
        q, k = q.reshape(groups, sharing * rows, dim), k.reshape(groups, keys, dim).mT
        if scores.softcap is None and offset is None:
            product.baddbmm_(q, k, beta=0, alpha=scores.scale)
        elif scores.softcap is None:
            assert offset is not None
            out.copy_(offset)
            product.baddbmm_(q, k, alpha=scores.scale)
        else:
            product.baddbmm_(q, k, beta=0, alpha=scores.scale / scores.softcap).tanh_().mul_(scores.softcap)
            if offset is not None:
                out.add_(offset)
        if lse is not None:
            out.sub_(lse[..., None])
        return out

    def exponential(self, log: Float[Tensor, " ..."]) -> Float[Tensor, " ..."]:
        """Return exp of a tile, in a second buffer. The tile itself is clamped to FLOOR from below."""
        return torch.exp(log.clamp_min_(FLOOR), out=self._buffer("exp", log.shape))

    def normalised(self, log: TileValues, strip: Strip, live: Tensor | None) -> TileValues:
        """Return A for a tile that holds all keys of its rows, without a known log-sum-exp. `log` becomes ln A."""
        top = log.amax(-1)
        pattern = self.exponential(log.sub_(top[..., None]))
        lse = self.complete(top + pattern.sum(-1).log_(), strip, live)
        self.note(lse, strip)
        above = (lse - top)[..., None]
        log.sub_(above)
        return pattern.mul_(torch.exp(-above))

    def note(self, lse: StripValues, strip: Strip) -> None:
        """Store the log-sum-exp subtracted from a strip's logits, if there is a tensor for it."""
        if self.lse is not None:
            cut(self.lse, strip.batch, strip.head, strip.row).copy_(lse)

    def _buffer(self, name: str, shape: torch.Size) -> Tensor:
        """Return memory for a tile, reused from the tile before."""
        last = self._buffers.get(name)
        if last is not None and last.shape == shape:
            return last
        whole = f"whole {name}"
        if whole not in self._buffers or self._buffers[whole].numel() < shape.numel():
            self._buffers[whole] = torch.empty(shape.numel(), dtype=self.dtype, device=self.query.device)
        self._buffers[name] = self._buffers[whole][: shape.numel()].view(shape)
        return self._buffers[name]

    def _offset(self, tile: Tile) -> tuple[Tensor | None, bool]:
        """Return the terms added to the logits on a tile, and whether the whole tile is forbidden."""
        offset = self._edge(tile)
        if self.scores.bias is not None:
            bias = cut(self.scores.bias.detach(), *tile).to(self.dtype).clamp_min(FORBIDDEN)
            offset = bias if offset is None else offset + bias
        if self.scores.allowed is not None:
            allowed = cut(self.scores.allowed, *tile)
            if not allowed.any():
                return None, True
            if not allowed.all():
                offset = torch.where(allowed, self._zero if offset is None else offset, FORBIDDEN)
        return offset, False

    def _edge(self, tile: Tile) -> Float[Tensor, "rows keys"] | None:
        """Return 0 inside the band and FORBIDDEN outside, for a tile that the edge of the band crosses.

        The result is cached: every sequence and head has the same edges, and long sequences have few kinds of them.
        """
        band, row, key = self.scores.band, tile.row, tile.key
        inside_ahead = band.ahead is None or key.stop - 1 - row.start <= band.ahead
        inside_behind = band.behind is None or row.stop - 1 - key.start <= band.behind
        if inside_ahead and inside_behind:
            return None
        shape = (width(row), width(key), key.start - row.start)
        if shape not in self._edges:
            i = torch.arange(row.start, row.stop, device=self.query.device)[:, None]
            j = torch.arange(key.start, key.stop, device=self.query.device)
            self._edges[shape] = torch.where(band.permits(i, j), self._zero, FORBIDDEN)
        return self._edges[shape]

    def strip_lse(self, strip: Strip) -> StripValues:
        """Return log-sum-exp of a strip's rows, by a sweep over its keys; FORBIDDEN if no key is seen."""
        shape = (width(strip.batch), width(strip.head), width(strip.row))
        total = torch.full(shape, FORBIDDEN, dtype=self.dtype, device=self.query.device)
        for key in strip.keys:
            log = self.logits(Tile(strip.batch, strip.head, strip.row, key), None)
            if log is not None:
                top = log.amax(-1)
                part = self.exponential(log.sub_(top[..., None])).sum(-1)
                total = torch.logaddexp(total, part.log_().add_(top))
        return total

    def complete(self, log_sum: Tensor, strip: Strip, live: Tensor | None) -> Tensor:
        """Apply `complete_lse` to the heads of a strip."""
        sinks = None if self.scores.sinks is None else self.scores.sinks[strip.head]
        return complete_lse(log_sum, sinks, live)


def complete_lse(log_sum: RowValues, sinks: Float[Tensor, " heads"] | None, live: QueryMask | None) -> RowValues:
    """Add the learned sinks. Rows that see nothing or are not `live` get a value for which A is 0."""
    seen = sees_any(log_sum, live)
    if sinks is not None:
        log_sum = torch.logaddexp(log_sum, sinks.detach().to(log_sum.dtype)[:, None])
    return log_sum.masked_fill(~seen, -FORBIDDEN)


def sees_any(log_sum: RowValues, live: QueryMask | None) -> Bool[Tensor, "batch heads query"]:
    """Return which rows are live and see a key. A row of NaN counts as seeing: it stays NaN."""
    seen = ~(log_sum <= FORBIDDEN / 10)
    return seen if live is None else seen & live[:, None]


def row_lse(scores: Scores, dtype: torch.dtype = torch.float32) -> RowValues:
    """Return every row's log-sum-exp, sinks included, tile by tile; a huge number for rows that see nothing."""
    source = LogPattern(scores, dtype)
    batch, heads, rows, _ = scores.query.shape
    lse = torch.empty(batch, heads, rows, dtype=dtype, device=scores.query.device)
    for strip in strips(scores, dtype):
        lse[strip.batch, strip.head, strip.row] = source.strip_lse(strip)
    return complete_lse(lse, scores.sinks, None)


def precise_lse(scores: Scores, dtype: torch.dtype) -> RowValues | None:
    """Return the log-sum-exp that came with the scores if it is at least as precise as `dtype`."""
    return scores.lse if scores.lse is not None and scores.lse.dtype.itemsize >= dtype.itemsize else None


def pattern_strips(
    scores: Scores,
    dtype: torch.dtype,
    *,
    lse: RowValues | None,
    query_mask: QueryMask | None = None,
    noted: RowValues | None = None,
) -> Iterator[tuple[Strip, Iterator[tuple[slice, Tensor, Tensor]]]]:
    """Yield the pattern strip by strip, and each strip tile by tile as (keys, A, ln A), without empty tiles.

    A and ln A are buffers: read or overwrite them before the next tile. `lse`, sinks included, is used if given. Rows
    whose `query_mask` is False are 0 in A (to within `VANISHING`). The number subtracted from each row's logits is
    written to `noted`, if given; it is huge for rows that see nothing or are masked.
    """
    source = LogPattern(scores, dtype)
    source.lse = noted
    if lse is not None:
        lse = complete_lse(lse.detach().to(dtype), None, query_mask)
    for strip in strips(scores, dtype):
        live = None if query_mask is None else cut(query_mask, strip.batch, strip.row)
        if scores.pattern is not None:
            yield strip, _given_tiles(scores.pattern, strip, dtype, live)
        else:
            strip_lse = None if lse is None else cut(lse, strip.batch, strip.head, strip.row)
            yield strip, _computed_tiles(source, strip, strip_lse, live)


def _computed_tiles(
    source: LogPattern, strip: Strip, lse: Tensor | None, live: Tensor | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    if lse is None and len(strip.keys) > 1:
        lse = source.complete(source.strip_lse(strip), strip, live)
    if lse is not None:
        source.note(lse, strip)
    for key in strip.keys:
        log = source.logits(Tile(strip.batch, strip.head, strip.row, key), lse)
        if log is not None:
            pattern = source.normalised(log, strip, live) if lse is None else source.exponential(log)
            yield key, pattern, log


def _given_tiles(
    pattern: Tensor, strip: Strip, dtype: torch.dtype, live: Tensor | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield tiles of a pattern that the model itself computed."""
    for key in strip.keys:
        tile = cut(pattern.detach(), strip.batch, strip.head, strip.row, key).to(dtype, copy=True)
        if live is not None:
            tile.masked_fill_(~live[:, None, :, None], 0)
        yield key, tile, tile.log().clamp_min_(FLOOR)
