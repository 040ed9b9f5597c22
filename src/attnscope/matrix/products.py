"""A x and A^T y for an attention pattern nobody has written down: what power iteration needs.

Both are sums over the tiles of `tiles.py`, so memory is O(n d). Call `with_lse` once before many products.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import pattern_strips, row_lse


def with_lse(scores: Scores, dtype: torch.dtype = torch.float32) -> Scores:
    """The same scores with every row's log-sum-exp, computed in `dtype` unless it is already as good."""
    if scores.pattern is not None or (scores.lse is not None and scores.lse.dtype.itemsize >= dtype.itemsize):
        return scores
    return replace(scores, lse=row_lse(scores, dtype))


def apply(scores: Scores, x: Float[Tensor, "batch heads key columns"]) -> Float[Tensor, "batch heads query columns"]:
    """A x, in the precision of x (float32 at least). Rows that may see nothing give 0."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    x = x.to(dtype)
    out = x.new_zeros(*x.shape[:2], scores.query.shape[2], x.shape[-1])
    for strip, tiles in pattern_strips(scores, dtype, lse=_known_lse(scores, dtype)):
        rows = out[strip.batch, strip.head, strip.row]
        for key, pattern, _ in tiles:
            rows.add_(pattern @ x[strip.batch, strip.head, key])
    return out


def apply_transposed(
    scores: Scores, y: Float[Tensor, "batch heads query columns"]
) -> Float[Tensor, "batch heads key columns"]:
    """A^T y, in the precision of y (float32 at least)."""
    dtype = torch.promote_types(y.dtype, torch.float32)
    y = y.to(dtype)
    out = y.new_zeros(*y.shape[:2], scores.key.shape[2], y.shape[-1])
    for strip, tiles in pattern_strips(scores, dtype, lse=_known_lse(scores, dtype)):
        rows = y[strip.batch, strip.head, strip.row]
        for key, pattern, _ in tiles:
            out[strip.batch, strip.head, key].add_(pattern.mT @ rows)
    return out


def _known_lse(scores: Scores, dtype: torch.dtype) -> Tensor | None:
    return scores.lse if scores.lse is not None and scores.lse.dtype.itemsize >= dtype.itemsize else None
