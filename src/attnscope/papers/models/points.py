"""Which of the other points is farthest: one head of full rank knows, many of low rank hardly do (arXiv:2407.16153).

A sequence is n unit vectors; the answer for each is the one with the smallest product with it. One head with
W_Q W_K^T = -beta I and values as they are gives it exactly as beta grows: softmax(-beta X X^T) X. Heads of rank r see
r directions each. `FarthestPoint` is the head by hand, `RankHeads` a layer of heads to be trained.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.treat.train import Loss
from attnscope.core.errors import RefusalError
from attnscope.papers.models.nano import Config, Nano

# Two points that walk along a circle: the toy of arXiv:2103.03404 (section 4.3) that makes rank collapse visible.
#
# A circle of radius 0.3 is cut into two arcs. A sequence has two tokens, one point on each arc at the same moment, and
# a model of one layer learns the next point of both. Then it is applied to its own answers: what it does to the
# distance of the two tokens in one step, it does hundreds of times.

RADIUS = 0.3
Kind = Literal["base", "skip", "mlp", "skip and mlp"]
KINDS: tuple[Kind, ...] = ("base", "skip", "mlp", "skip and mlp")


def arcs(points: int) -> Float[Tensor, "moment arc xy"]:
    """The circle's points, the first half as one arc and the second half as the other, moment by moment."""
    angle = torch.arange(points) * (2 * math.pi / points)
    circle = RADIUS * torch.stack([angle.cos(), angle.sin()], dim=-1)
    return torch.stack([circle[: points // 2], circle[points // 2 : 2 * (points // 2)]], dim=1)


def circle_model(kind: Kind, width: int, seed: int) -> Nano:
    """One layer, two heads, a norm and no positions: attention alone, with the skip, with an MLP, or with both."""
    config = Config(
        inputs=2,
        out=2,
        width=width,
        heads=2,
        layers=1,
        norm="post",
        positions="none",
        skip="skip" in kind,
        mlp=2 * width if "mlp" in kind else None,
    )
    return Nano(config, seed)


def circle_loss(points: int, batch: int, noise: float) -> Loss:
    """Mean squared error of the next step, in units of the circle's radius.

    With `noise`, also in those units, the points a model is given lie a little off the circle and it learns to come
    back. Without, it knows the circle alone, and what it does beside it is chance.
    """
    path = arcs(points)

    def loss(model: nn.Module, rng: torch.Generator) -> Tensor:
        now = torch.randint(0, len(path) - 1, (batch,), generator=rng)
        given = path[now] + noise * RADIUS * torch.randn((batch, 2, 2), generator=rng)
        answer: Tensor = model(vectors=given)
        return F.mse_loss(answer / RADIUS, path[now + 1] / RADIUS)

    return loss


@torch.no_grad()
def walk(model: Nano, start: Float[Tensor, "arc xy"], steps: int) -> Float[Tensor, "moment arc xy"]:
    """The model applied to its own answers; the first moment is the start."""
    moments = [start]
    for _ in range(steps):
        moments.append(model(vectors=moments[-1][None])[0])
    return torch.stack(moments)


def gaps(track: Float[Tensor, "moment arc xy"]) -> Float[Tensor, " moment"]:
    """Distance of the two tokens, in diameters of the circle: 1 where they began."""
    apart: Tensor = torch.linalg.vector_norm(track[:, 0] - track[:, 1], dim=-1)
    return apart / (2 * RADIUS)


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
