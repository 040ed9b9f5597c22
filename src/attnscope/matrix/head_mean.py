"""The mean of a layer's patterns over heads, seen from one side: r A and A 1, without writing A down."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.products import apply, apply_transposed
from attnscope.matrix.scores import Scores


def mean_pattern_from_left(scores: Scores, r: Float[Tensor, "batch query"]) -> Float[Tensor, "batch key"]:
    """r times the mean over heads of A."""
    heads = scores.query.shape[1]
    columns = r[:, None, :, None].expand(-1, heads, -1, 1)
    return apply_transposed(scores, columns).mean(1).squeeze(-1)


def mean_row_mass(scores: Scores, dtype: torch.dtype) -> Float[Tensor, "batch query"]:
    """What rows sum to, averaged over heads: 1, unless a learned sink takes a part or a row may see nothing."""
    batch, heads = scores.query.shape[:2]
    ones = torch.ones(batch, heads, scores.key.shape[2], 1, dtype=dtype, device=scores.query.device)
    return apply(scores, ones).mean(1).squeeze(-1)
