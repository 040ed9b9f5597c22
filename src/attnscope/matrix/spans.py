"""How attention is spread over distances, without sink keys: a histogram of mass by |i - j| for every head.

A sink key takes what a head does not need, however far away it is. Its mass says nothing about how far a head looks, so
it is left out. Sink keys of a head are

    the first real key, and
    every key that receives more than 0.3 of the head's attention (and more than 2/n, for sequences of n < 7 tokens).

The first key is left out of every tile. Other sink keys are known only after the last tile. There are at most three a
head (3 x 0.3 < 1 < 4 x 0.3), so their columns are computed again, A_ik = exp(s_ik - lse_i), and subtracted.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.core.limits import SINK_MASS
from attnscope.matrix.scores import KeyMask, QueryMask, RowValues, Scores
from attnscope.matrix.tiling import Strip, cut

# Diagonals are summed over so many rows at a time. Fewer rows cost calls; more make larger corners, which cost three
# passes instead of one.
GROUP = 64
ByDistance = Float[Tensor, "batch heads distance"]


def sink_keys(
    received: Float[Tensor, "batch heads key"], query_mask: QueryMask, key_mask: KeyMask
) -> Bool[Tensor, "batch heads key"]:
    """Return which keys are sinks, from the mass that they receive from all real rows."""
    bar = torch.clamp_min(2 / key_mask.sum(-1).clamp_min(1).to(received.dtype), SINK_MASS)
    rows = query_mask.sum(-1).clamp_min(1)
    heavy = received > (bar * rows)[:, None, None]
    first = key_mask & (key_mask.cumsum(-1) == 1)
    return (heavy | first[:, None]) & key_mask[:, None]


def diagonal_sums(tile: Float[Tensor, "*lead rows keys"]) -> Float[Tensor, "*lead diagonals"]:
    """Return the sum of every diagonal, from j - i = 1 - rows to keys - 1. The tile is overwritten.

    Entry (i, j) of a contiguous tile has the flat index i keys + j = i (keys + 1) + (j - i). Cut into rows of keys + 1
    numbers, the tile thus has diagonal j - i in column (j - i) mod (keys + 1), and one sum over rows gives every
    diagonal. The diagonals below the main one share columns with those in the upper right corner: they are taken out
    first, and summed in the same way.
    """
    rows, keys = tile.shape[-2:]
    if keys < rows:  # the diagonals below the main one would share columns with each other
        return diagonal_sums(tile.mT.contiguous()).flip(-1)
    corner = tile[..., : rows - 1]
    below = corner * torch.ones(rows, rows - 1, dtype=tile.dtype, device=tile.device).tril_(-1)
    corner.sub_(below)
    return torch.cat([_wrapped_sums(below)[..., 1:], _wrapped_sums(tile)[..., :keys]], -1)


def _wrapped_sums(tile: Float[Tensor, "*lead rows keys"]) -> Float[Tensor, "*lead columns"]:
    """Return the sum of the diagonals j - i = c, c - (keys + 1), ... for each c from 0 to keys."""
    *lead, rows, keys = tile.shape
    flat, width = tile.view(*lead, rows * keys), keys + 1
    whole = rows * keys // width
    sums: Tensor = flat[..., : whole * width].view(*lead, whole, width).sum(-2)
    rest = flat[..., whole * width :]
    sums[..., : rest.shape[-1]].add_(rest)
    return sums


class DistanceMass:
    """Sums the mass on every diagonal of the pattern over tiles, without the first real key."""

    def __init__(self, scores: Scores, first_key: list[int]) -> None:
        batch, heads, self._rows, _ = scores.query.shape
        self._scores, self._first_key = scores, first_key
        # A diagonal is a sum over all strips: float64 keeps that sum as precise as its parts.
        shape = (batch, heads, self._rows + scores.key.shape[2] - 1)
        self._diagonals = torch.zeros(shape, dtype=torch.float64, device=scores.query.device)

    def add(self, pattern: Float[Tensor, "some_batch some_heads rows keys"], strip: Strip, key: slice) -> None:
        """Add a tile, which is overwritten."""
        for place, column in enumerate(self._first_key[strip.batch]):
            if key.start <= column < key.stop:
                pattern[place, ..., column - key.start] = 0.0
        rows = pattern.shape[2]
        whole = rows - rows % GROUP
        groups = pattern[:, :, :whole].view(*pattern.shape[:2], whole // GROUP, GROUP, pattern.shape[3])
        rest = (diagonal_sums(pattern[:, :, whole:]),) if whole < rows else ()
        total = cut(self._diagonals, strip.batch, strip.head)
        for number, sums in enumerate((*diagonal_sums(groups).unbind(2), *rest)):
            last_row = min(strip.row.start + (number + 1) * GROUP, strip.row.stop) - 1
            total.narrow(2, key.start - last_row + self._rows - 1, sums.shape[-1]).add_(sums)

    def by_distance(
        self, sinks: Bool[Tensor, "batch heads key"], *, lse: RowValues | None, query_mask: QueryMask
    ) -> ByDistance:
        """Return the mass at every distance |i - j| without the sink keys. `lse` is not needed for a given pattern."""
        sinks = sinks.clone()
        sinks[torch.arange(len(sinks)), :, self._first_key] = False  # already left out
        sequence, head, key = sinks.nonzero(as_tuple=True)
        if len(key):
            mass = column_mass(self._scores, sequence, head, key, self._diagonals.dtype, lse)
            mass = mass.masked_fill(~query_mask[sequence], 0.0)
            row = torch.arange(self._rows, device=key.device)
            place = (sequence[:, None], head[:, None], key[:, None] - row + self._rows - 1)
            self._diagonals.index_put_(place, -mass, accumulate=True)
            self._diagonals.clamp_min_(0.0)  # the columns were subtracted with other roundings
        return fold(self._diagonals, self._rows)


def fold(diagonals: Float[Tensor, "batch heads diagonal"], rows: int) -> ByDistance:
    """Return the sums over |i - j| of sums over j - i, which begin at 1 - rows."""
    behind, ahead = diagonals[..., :rows].flip(-1), diagonals[..., rows:]
    folded = behind.new_zeros(*behind.shape[:-1], max(rows, 1 + ahead.shape[-1]))
    folded[..., :rows] += behind
    folded[..., 1 : 1 + ahead.shape[-1]] += ahead
    return folded


def column_mass(
    scores: Scores,
    sequence: Int[Tensor, " column"],
    head: Int[Tensor, " column"],
    key: Int[Tensor, " column"],
    dtype: torch.dtype,
    lse: RowValues | None,
) -> Float[Tensor, "column query"]:
    """Return some columns of the pattern: the mass that each row puts on one key of one head of one sequence."""
    batch, heads, rows, _ = scores.query.shape
    whole = (batch, heads, rows, scores.key.shape[2])
    if scores.pattern is not None:
        return scores.pattern.detach()[sequence, head, :, key].to(dtype)
    assert lse is not None
    query = scores.query.detach()[sequence, head].to(dtype)
    chosen = scores.key.detach()[sequence, head // scores.sharing, key].to(dtype)
    s = scores.scale * (query @ chosen[..., None])[..., 0]
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + scores.bias.detach().expand(whole)[sequence, head, :, key].to(dtype)
    seen = scores.band.permits(torch.arange(rows, device=key.device), key[:, None])
    if scores.allowed is not None:
        seen = seen & scores.allowed.expand(whole)[sequence, head, :, key]
    return torch.where(seen, torch.exp(s - lse[sequence, head].to(dtype)), 0.0)
