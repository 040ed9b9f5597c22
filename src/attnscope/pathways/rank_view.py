"""Do long paths carry tokens apart? The relative residual of the sum of all paths of each length.

A path through attention alone is a product of row-stochastic patterns, and such products tend to rank one
(arXiv:2103.03404, section 2). Whether sums of long paths do in a whole model, where MLPs and norms act on every token
by itself, is what `residual` measures; `share` says from which lengths comes what tells tokens apart: the projection
of each length's residual on the residual of the whole stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.residual import relative_residual, residual_about_mean
from attnscope.pathways.lengths import Lengths


@dataclass(frozen=True)
class RankView:
    """By length: the relative residual of its sum for every sequence, and its share of the whole stream's residual."""

    residual: Float[Tensor, "length batch"]
    whole: Float[Tensor, " batch"]
    share: Float[Tensor, "length batch"]


@torch.no_grad()
def rank_view(found: Lengths, token_mask: Bool[Tensor, "batch token"] | None = None) -> RankView:
    """Of the stream that leaves the last block. Shares add up to one; all is zero for sequences of one token."""
    stream, lengths = found.stream.value, found.by_length
    apart = residual_about_mean(stream, token_mask)
    size = apart.square().sum((1, 2))
    parts = [(residual_about_mean(part, token_mask) * apart).sum((1, 2)) for part in lengths]
    return RankView(
        residual=torch.stack([relative_residual(part, token_mask) for part in lengths]),
        whole=relative_residual(stream, token_mask),
        share=torch.stack(parts) / size.clamp_min(torch.finfo(size.dtype).tiny),
    )
