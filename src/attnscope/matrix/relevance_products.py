"""r Abar and Abar x for Abar = mean over heads of (dA * A)^+ (arXiv:2103.15679, equation 5), a few rows at a time.

With dA = dO V^T and A = exp(s - lse), a tile of Abar needs the queries and dO of its rows and the keys and values of
its columns: two products and an exponential. Nothing of size n x n is kept, and rows that r does not touch are not
computed: the relevance of one answer begins with a single row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.attention_call import AttentionCall
from attnscope.matrix.tiles import pattern_strips
from attnscope.matrix.tiling import Strip, cut


def from_left(call: AttentionCall, r: Float[Tensor, "batch query"]) -> Float[Tensor, "batch key"]:
    """r Abar: what rows weighed by r hand down to every key."""
    out = r.new_zeros(r.shape[0], call.scores.key.shape[2])
    for strip, key, tile in _tiles(call, r.dtype, rows=r):
        weights = r[strip.batch, None, None, strip.row]
        out[strip.batch, key] += (weights @ tile).sum((1, 2))
    return out / call.scores.query.shape[1]


def from_right(call: AttentionCall, x: Float[Tensor, "batch key"]) -> Float[Tensor, "batch query"]:
    """Abar x: what every row receives of the keys' x."""
    out = x.new_zeros(x.shape[0], call.scores.query.shape[2])
    for strip, key, tile in _tiles(call, x.dtype):
        out[strip.batch, strip.row] += (tile @ x[strip.batch, None, key, None]).squeeze(-1).sum(1)
    return out / call.scores.query.shape[1]


def abar(call: AttentionCall) -> Float[Tensor, "query key"]:
    """Abar itself, of one sequence: for streams that read each other, whose maps are kept anyway."""
    scores, dtype = call.scores, torch.promote_types(call.gradient.dtype, torch.float32)
    out = call.gradient.new_zeros(scores.query.shape[2], scores.key.shape[2], dtype=dtype)
    for strip, key, tile in _tiles(call, dtype):
        out[strip.row, key] += tile.sum((0, 1))
    return out / scores.query.shape[1]


def _tiles(
    call: AttentionCall, dtype: torch.dtype, rows: Float[Tensor, "batch query"] | None = None
) -> Iterator[tuple[Strip, slice, Float[Tensor, "some_batch some_heads rows keys"]]]:
    """(dA * A)^+ tile by tile; strips whose `rows` are all 0 are left out. Query heads that share values share the
    product with them."""
    scores = call.scores
    sharing = scores.query.shape[1] // call.value.shape[1]  # query heads that read the values of one head
    lse = scores.lse if scores.lse is not None and scores.lse.dtype.itemsize >= dtype.itemsize else None
    gradient, value = call.gradient.to(dtype).transpose(1, 2), call.value.to(dtype)
    for strip, tiles in pattern_strips(scores, dtype, lse=lse):
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
