"""Two points that walk along a circle: the toy of arXiv:2103.03404 (section 4.3) that makes rank collapse visible.

A circle of radius 0.3 is cut into two arcs. A sequence has two tokens, one point on each arc at the same moment, and
a model of one layer learns the next point of both. Then it is applied to its own answers: what it does to the distance
of the two tokens in one step, it does hundreds of times.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.models.nano import Config, Nano
from attnscope.models.train import Loss

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
