"""Relevance from attention and its gradient (arXiv:2103.15679), for one stream or two that attend to each other.

Abar = mean over heads of (dA * A)^+ (equation 5) is computed for a few rows at a time. The gradient of the pattern
needs no map: for O = A V, dA = dO V^T, one dot product per entry, where the paper needs both n x n maps from the model.
With A = exp(s - lse) a tile of Abar needs the queries and dO of its rows and the keys and values of its columns. Rows
where r is 0 are not computed: the relevance of one answer begins with a single row.

Two streams s and q (words and patches), equations 6 to 11:

    self-attention of s      R^ss += Abar R^ss,   R^sq += Abar R^sq                                    (6, 7)
    s attends to q           R^sq += (Rbar^ss)^T Abar Rbar^qq,   R^ss += Abar R^qs                     (10, 11)
    Rbar = I + S^-1 (R - I),   S the row sums of R - I                                                 (8, 9)

From R^ss = R^qq = I and R^sq = R^qs = 0, in the order of the calls. Where s attends to q and q to s without seeing each
other's result (co-attention in parallel, as in LXMERT), both add to the maps as they were before either. (11) feeds
R^qs back into R^ss and (10) is not linear in the maps, so carrying one row down is not enough here. Four maps are kept,
(s + q)^2 numbers in all, for the whole model and not for every head of every block. A row sum of 0 means R = I there,
and its share is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import TileValues, pattern_strips, precise_lse
from attnscope.matrix.tiling import Strip, cut

TokenVectors = dict[str, Float[Tensor, "token width"]]  # by stack
TokenScores = dict[str, Float[Tensor, " token"]]
Map = Float[Tensor, "_ _"]  # maps of one dictionary differ in size
MOST_NUMBERS = 1 << 28  # limit for all maps together: 1 GB in float32


@dataclass(frozen=True)
class AttentionCall:
    """One attention call of a run with a scalar result: its scores, its values, and the gradient of the result at A V.

    Queries of `stack` attend to keys of `keys_from`; both are the same in self-attention.
    """

    stack: str
    keys_from: str
    layer: int
    scores: Scores
    value: Float[Tensor, "batch kv_heads key value_dim"]
    gradient: Float[Tensor, "batch query heads value_dim"]  # gradient of the scalar result with respect to A V
    sees_last: bool = True  # whether its input depends on the output of the call before
    of_old_states: bool = False  # whether it reads an outdated state of another stream

    @property
    def crosses(self) -> bool:
        return self.stack != self.keys_from


def from_left(call: AttentionCall, r: Float[Tensor, "batch query"]) -> Float[Tensor, "batch key"]:
    """Return r Abar: the relevance that rows weighted by r pass to every key."""
    out = r.new_zeros(r.shape[0], call.scores.key.shape[2])
    for strip, key, tile in _tiles(call, r.dtype, rows=r):
        weights = r[strip.batch, None, None, strip.row]
        out[strip.batch, key] += (weights @ tile).sum((1, 2))
    return out / call.scores.query.shape[1]


def from_right(call: AttentionCall, x: Float[Tensor, "batch key"]) -> Float[Tensor, "batch query"]:
    """Return Abar x: the relevance that every row receives from the keys' x."""
    out = x.new_zeros(x.shape[0], call.scores.query.shape[2])
    for strip, key, tile in _tiles(call, x.dtype):
        out[strip.batch, strip.row] += (tile @ x[strip.batch, None, key, None]).squeeze(-1).sum(1)
    return out / call.scores.query.shape[1]


def abar(call: AttentionCall) -> Float[Tensor, "query key"]:
    """Return the whole map Abar of one sequence, for streams that attend to each other."""
    scores, dtype = call.scores, torch.promote_types(call.gradient.dtype, torch.float32)
    out = call.gradient.new_zeros(scores.query.shape[2], scores.key.shape[2], dtype=dtype)
    for strip, key, tile in _tiles(call, dtype):
        out[strip.row, key] += tile.sum((0, 1))
    return out / scores.query.shape[1]


def _tiles(
    call: AttentionCall, dtype: torch.dtype, rows: Float[Tensor, "batch query"] | None = None
) -> Iterator[tuple[Strip, slice, TileValues]]:
    """Yield (dA * A)^+ tile by tile; strips whose `rows` are all 0 are skipped. Query heads that share values share the
    product with them."""
    scores = call.scores
    sharing = scores.query.shape[1] // call.value.shape[1]  # number of query heads that share the values of one head
    gradient, value = call.gradient.to(dtype).transpose(1, 2), call.value.to(dtype)
    for strip, tiles in pattern_strips(scores, dtype, lse=precise_lse(scores, dtype)):
        if rows is not None and not bool(rows[strip.batch, strip.row].any()):
            continue
        shared = slice(strip.head.start // sharing, strip.head.stop // sharing)
        of_rows = cut(gradient, strip.batch, strip.head, strip.row)
        sequences, heads, count, width = of_rows.shape
        of_rows = of_rows.reshape(sequences, heads // sharing, sharing * count, width)
        for key, pattern, _ in tiles:
            of_keys = cut(value, strip.batch, shared, key)
            product = (of_rows @ of_keys.mT).view(sequences, heads, count, -1)
            yield strip, key, product.clamp_min_(0).mul_(pattern)


def read_each_other(calls: Sequence[AttentionCall]) -> bool:
    """Return whether two stacks attend to each other."""
    crossing = {(call.stack, call.keys_from) for call in calls if call.crosses}
    return any((keys, stack) in crossing for stack, keys in crossing)


def of_two_streams(
    calls: Sequence[AttentionCall], start: dict[str, Float[Tensor, " _"]]
) -> dict[str, Float[Tensor, " _"]]:
    """Return the relevance of every token of every stream for the number, read from the rows of `start`."""
    maps = relevance_maps(calls)
    relevance = {}
    for stack in dict.fromkeys((*start, *(stack for pair in maps for stack in pair))):
        rows = [weights.to(maps[begin, stack]) @ maps[begin, stack] for begin, weights in start.items()]
        total = torch.stack(rows).sum(0)
        relevance[stack] = (total - start[stack].to(total) if stack in start else total).clamp_min(0)
    return relevance


def relevance_maps(calls: Sequence[AttentionCall]) -> dict[tuple[str, str], Map]:
    """Return R^ab for every pair of streams a and b after all calls."""
    sizes: dict[str, int] = {}
    for call in calls:
        sizes[call.stack] = call.scores.query.shape[2]
        sizes.setdefault(call.keys_from, call.scores.key.shape[2])
    if sum(sizes.values()) ** 2 > MOST_NUMBERS:
        raise RefusalError(
            f"Streams that read each other need a map of all tokens, and {sum(sizes.values())} are too many for it: "
            f"give an input of {int(MOST_NUMBERS**0.5)} tokens at most."
        )
    if any(call.of_old_states for call in calls):
        raise RefusalError(
            "One of two streams that read each other reads an earlier state of the other, which this rule does not "
            "cover: choose another method, like attention_lrp."
        )
    like = calls[0].gradient
    maps: dict[tuple[str, str], Tensor] = {}
    for mine, rows in sizes.items():
        for other, columns in sizes.items():
            zeros = torch.zeros(rows, columns, dtype=like.dtype, device=like.device)
            maps[mine, other] = zeros.fill_diagonal_(1) if mine == other else zeros
    for together in _in_parallel(calls):
        for parts in [_added(call, maps, tuple(sizes)) for call in together]:
            for pair, part in parts.items():
                maps[pair] = maps[pair] + part
    return maps


def _added(
    call: AttentionCall, maps: dict[tuple[str, str], Map], streams: tuple[str, ...]
) -> dict[tuple[str, str], Map]:
    """Return the terms that one call adds to the maps."""
    s, q, pattern = call.stack, call.keys_from, abar(call)
    if not call.crosses:
        return {(s, other): pattern @ maps[s, other] for other in streams}
    return {(s, q): normalised(maps[s, s]).mT @ pattern @ normalised(maps[q, q]), (s, s): pattern @ maps[q, s]}


def normalised(relevance: Float[Tensor, "token token"]) -> Float[Tensor, "token token"]:
    """Return Rbar = I + S^-1 (R - I) (8, 9)."""
    own = torch.eye(len(relevance), dtype=relevance.dtype, device=relevance.device)
    others = relevance - own
    sums = others.sum(-1, keepdim=True)
    return own + torch.where(sums > 0, others / torch.where(sums > 0, sums, 1.0), 0.0)


def _in_parallel(calls: Sequence[AttentionCall]) -> list[list[AttentionCall]]:
    """Put each call into a group of its own, but two that cross in opposite ways without seeing each other into one."""
    groups: list[list[AttentionCall]] = []
    for call in calls:
        before = groups[-1][-1] if groups else None
        opposite = before is not None and (before.stack, before.keys_from) == (call.keys_from, call.stack)
        if opposite and call.crosses and not call.sees_last and len(groups[-1]) == 1:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups
