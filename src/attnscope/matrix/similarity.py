"""How alike tokens are: mean cosine similarity without the n x n matrix, and the diameter of the cloud."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.sequences import sequences

_BLOCK = 256


def token_cosine(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"] | None = None
) -> Float[Tensor, " batch"]:
    """Mean cosine similarity over distinct pairs of tokens, in O(n d).

    With u_i = x_i / |x_i| and s = sum_i u_i,   |s|^2 = sum_i |u_i|^2 + sum_{i != j} <u_i, u_j>, so the mean
    over the n (n - 1) ordered pairs is (|s|^2 - sum_i |u_i|^2) / (n (n - 1)). A zero token is orthogonal to
    everything. A single token has no pair; it agrees with itself, which is the limit of n equal tokens: 1.
    """
    parts = []
    for some in sequences(stream, token_mask):
        length = torch.linalg.vector_norm(some.tokens, dim=-1)
        inverse = torch.where(length == 0, 0.0, 1.0 / length)  # padding rows are zero, so they drop out as well
        total = (inverse[:, None, :] @ some.tokens).squeeze(-2)
        own = (length * inverse).square().sum(dim=-1)
        pairs = some.count * (some.count - 1.0)
        parts.append(torch.where(pairs > 0, (total.square().sum(dim=-1) - own) / pairs.clamp_min(1.0), 1.0))
    return torch.cat(parts)


def diameter(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"] | None = None
) -> Float[Tensor, " batch"]:
    """max_ij |x_i - x_j|_2, a block of rows at a time; differences are formed before they are squared."""
    parts = []
    for some in sequences(stream, token_mask):
        tokens = some.tokens
        if some.padding is not None:  # moved to the mean token, which lies inside the cloud
            tokens = tokens.clone()
            rows = tokens.flatten(0, 1)
            rows[some.padding] = some.mean().squeeze(-2)[some.padding // tokens.shape[1]]
        blocks = [
            torch.cdist(tokens[:, i : i + _BLOCK], tokens, compute_mode="donot_use_mm_for_euclid_dist")
            for i in range(0, tokens.shape[1], _BLOCK)
        ]
        parts.append(torch.stack([block.amax(dim=(-2, -1)) for block in blocks]).amax(dim=0))
    return torch.cat(parts)
