"""A x and A^T y without the attention pattern A, as power iteration needs them.

Both are sums over the tiles of `tiles.py`, so memory is O(n d). Call `with_lse` once before many products.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import pattern_strips, precise_lse, row_lse


def with_lse(scores: Scores, dtype: torch.dtype = torch.float32) -> Scores:
    """Add every row's log-sum-exp to the scores, computed in `dtype` unless it is already as precise."""
    if scores.pattern is not None or precise_lse(scores, dtype) is not None:
        return scores
    return replace(scores, lse=row_lse(scores, dtype))


def apply(scores: Scores, x: Float[Tensor, "batch heads key columns"]) -> Float[Tensor, "batch heads query columns"]:
    """Return A x, in the precision of x (at least float32). Rows that see nothing give 0."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    x = x.to(dtype)
    out = x.new_zeros(*x.shape[:2], scores.query.shape[2], x.shape[-1])
    for strip, tiles in pattern_strips(scores, dtype, lse=precise_lse(scores, dtype)):
        rows = out[strip.batch, strip.head, strip.row]
        for key, pattern, _ in tiles:
            rows.add_(pattern @ x[strip.batch, strip.head, key])
    return out


def apply_transposed(
    scores: Scores, y: Float[Tensor, "batch heads query columns"]
) -> Float[Tensor, "batch heads key columns"]:
    """Return A^T y, in the precision of y (at least float32)."""
    dtype = torch.promote_types(y.dtype, torch.float32)
    y = y.to(dtype)
    out = y.new_zeros(*y.shape[:2], scores.key.shape[2], y.shape[-1])
    for strip, tiles in pattern_strips(scores, dtype, lse=precise_lse(scores, dtype)):
        rows = y[strip.batch, strip.head, strip.row]
        for key, pattern, _ in tiles:
            out[strip.batch, strip.head, key].add_(pattern.mT @ rows)
    return out


def mean_pattern_from_left(scores: Scores, r: Float[Tensor, "batch query"]) -> Float[Tensor, "batch key"]:
    """Return r times the mean of A over heads."""
    columns = r[:, None, :, None].expand(-1, scores.query.shape[1], -1, 1)
    return apply_transposed(scores, columns).mean(1).squeeze(-1)


def mean_row_mass(scores: Scores, dtype: torch.dtype) -> Float[Tensor, "batch query"]:
    """Return the sums of rows, averaged over heads: 1, unless a learned sink takes a part or a row sees nothing."""
    batch, heads = scores.query.shape[:2]
    ones = torch.ones(batch, heads, scores.key.shape[2], 1, dtype=dtype, device=scores.query.device)
    return apply(scores, ones).mean(1).squeeze(-1)
