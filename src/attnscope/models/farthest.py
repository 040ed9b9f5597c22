"""Which of the other points is farthest: one head of full rank knows, many of low rank hardly do (arXiv:2407.16153).

A sequence is n unit vectors; the answer for each is the one with the smallest product with it. One head with
W_Q W_K^T = -beta I and values as they are gives it exactly as beta grows: softmax(-beta X X^T) X. Heads of rank r see
r directions each. `FarthestPoint` is the head by hand, `RankHeads` a layer of heads to be trained.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError


def unit_vectors(batch: int, points: int, width: int, rng: torch.Generator) -> Float[Tensor, "batch point width"]:
    return F.normalize(torch.randn(batch, points, width, generator=rng), dim=-1)


def farthest(x: Float[Tensor, "batch point width"]) -> Float[Tensor, "batch point width"]:
    """For every point the one with the smallest product with it, found by looking at all."""
    which = (x @ x.mT).argmin(-1)
    return torch.take_along_dim(x, which[..., None], dim=1)


class FarthestPoint(nn.Module):
    """softmax(-beta X X^T) X: one head as wide as the points."""

    beta: Tensor

    def __init__(self, beta: float) -> None:
        super().__init__()
        if beta <= 0:
            raise RefusalError(f"A head with beta {beta} does not look for the farthest point: give one over 0.")
        self.register_buffer("beta", torch.tensor(beta))
        self.main_input_name = "vectors"

    def forward(self, vectors: Float[Tensor, "batch point width"]) -> Float[Tensor, "batch point width"]:
        one = vectors[:, None]
        return F.scaled_dot_product_attention(-self.beta.to(one.dtype) * one, one, one, scale=1.0)[:, 0]


class RankHeads(nn.Module):
    """Heads of one rank: queries, keys, values and what is written each have `heads x rank` columns in all."""

    def __init__(self, width: int, heads: int, rank: int, seed: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.heads, self.rank = heads, rank
        self.main_input_name = "vectors"
        shape = (heads * rank, width)
        self.query, self.key, self.value = (
            nn.Parameter(torch.randn(*shape, generator=rng) / width**0.5) for _ in range(3)
        )
        self.write = nn.Parameter(torch.randn(width, heads * rank, generator=rng) / (heads * rank) ** 0.5)

    def forward(self, vectors: Float[Tensor, "batch point width"]) -> Float[Tensor, "batch point width"]:
        batch, points, _ = vectors.shape
        query, key, value = (
            (vectors @ weight.T).reshape(batch, points, self.heads, self.rank).transpose(1, 2)
            for weight in (self.query, self.key, self.value)
        )
        # Points are unit vectors and logits must become large: scale 1, not 1/sqrt(rank), for every rank alike.
        mixed = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        return mixed.transpose(1, 2).flatten(2) @ self.write.T
