"""Two points that walk along a circle: the toy of arXiv:2103.03404 (section 4.3) that makes rank collapse visible.

A circle of radius 0.3 is cut into two arcs. A sequence has two tokens, one point on each arc at the same moment, and a
model of one block learns to predict the next point of both. The model is then applied to its own answers hundreds of
times, so any change in the distance between the two tokens is compounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.treat.train import Loss, Recipe, train
from attnscope.core.experiment import Figure, Number, Point, Session
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.trials.curves import Rows, select

RADIUS = 0.3
BATCH = 64
RATE = 3e-3
KEPT = 5  # every fifth moment is kept for the figure
Kind = Literal["base", "skip", "mlp", "skip and mlp"]
KINDS: tuple[Kind, ...] = ("base", "skip", "mlp", "skip and mlp")


def arcs(points: int) -> Float[Tensor, "moment arc xy"]:
    """Return the points of the circle, cut into two halves."""
    angle = torch.arange(points) * (2 * math.pi / points)
    circle = RADIUS * torch.stack([angle.cos(), angle.sin()], dim=-1)
    return torch.stack([circle[: points // 2], circle[points // 2 : 2 * (points // 2)]], dim=1)


def circle_model(kind: Kind, width: int, seed: int) -> Nano:
    """Return a model of one block with two heads and no positions: attention alone, or with a skip, an MLP, or both."""
    mlp = 2 * width if "mlp" in kind else None
    sizes: dict[str, Any] = {"inputs": 2, "out": 2, "width": width, "heads": 2, "layers": 1, "mlp": mlp}
    return Nano(Config(**sizes, norm="post", positions="none", skip="skip" in kind), seed)


def circle_loss(points: int, batch: int, noise: float) -> Loss:
    """Return the loss function: the mean squared error of the next point, in radii.

    With `noise` (in radii) the inputs lie a little off the circle, and the model learns to return to it. Without noise,
    its behaviour off the circle is left to chance.
    """
    path = arcs(points)

    def loss(model: nn.Module, rng: torch.Generator) -> Tensor:
        now = torch.randint(0, len(path) - 1, (batch,), generator=rng)
        vectors = path[now] + noise * RADIUS * torch.randn((batch, 2, 2), generator=rng)
        answer: Tensor = model(vectors=vectors)
        return F.mse_loss(answer / RADIUS, path[now + 1] / RADIUS)

    return loss


@torch.no_grad()
def walk(model: Nano, start: Float[Tensor, "arc xy"], steps: int) -> Float[Tensor, "moment arc xy"]:
    """Apply the model repeatedly to its own answers, and return all points, beginning with `start`."""
    moments = [start]
    for _ in range(steps):
        moments.append(model(vectors=moments[-1][None])[0])
    return torch.stack(moments)


def gaps(track: Float[Tensor, "moment arc xy"]) -> Float[Tensor, " moment"]:
    """Return the distance between the two tokens, in diameters; it is 1 at the start."""
    apart: Tensor = torch.linalg.vector_norm(track[:, 0] - track[:, 1], dim=-1)
    return apart / (2 * RADIUS)


def circle_walk(
    kind: Kind, width: int, noise: float, *, points: int, steps: int, applied: int, seed: int, session: Session
) -> dict[str, Any]:
    """Train a model, walk, and measure the distance between the two tokens on the way."""
    model = circle_model(kind, width, seed)
    losses = train(
        model,
        circle_loss(points, BATCH, noise),
        Recipe(steps, RATE),
        seed=seed,
        kept=session.state_path(f"circle-{kind}-{width}-{noise}-{seed}"),
        advance=session.advance,
        stage=f"circle {kind}, seed {seed}",
    )
    truth = arcs(points)
    track = walk(model, truth[0], applied)
    error = ((track - truth[: applied + 1]) / RADIUS).norm(dim=-1).mean(dim=-1)
    apart = gaps(track)
    below = (apart < 0.1).nonzero()
    return {
        "kind": kind,
        "width": width,
        "noise": noise,
        "seed": seed,
        "loss": losses[-1],
        "gap": float(apart[-1]),
        "error": float(error[-1]),
        "collapsed_after": int(below[0]) if len(below) else None,
        "track": torch.round(track[::KEPT], decimals=4).tolist(),
    }


def circle_numbers(circles: Rows) -> dict[str, list[float]]:
    """Return the final distance between the tokens, for the narrowest model of every kind."""
    numbers: dict[str, list[float]] = {}
    for row in select(circles, width=min(row["width"] for row in circles)):
        where = "beside" if row["noise"] else "on"
        numbers.setdefault(f"gap_{row['kind'].replace(' ', '_')}_trained_{where}_circle", []).append(row["gap"])
    return numbers


def trained_on(noise: float) -> str:
    return "points near the circle as well" if noise else "the circle alone"


def circle_remarks(circles: Rows) -> tuple[str, ...]:
    """Return remarks on how many walks end with the tokens apart, for each kind of training."""
    words = []
    for noise in dict.fromkeys(row["noise"] for row in circles):
        kinds = []
        for kind in dict.fromkeys(row["kind"] for row in circles):
            last = [row["gap"] for row in select(circles, kind=kind, noise=noise)]
            kinds.append(f"{sum(0.5 <= gap <= 2 for gap in last)} of {len(last)} ({kind})")
        words.append(f"E, trained on {trained_on(noise)}: tokens end apart (.5 to 2 diameters) in {', '.join(kinds)}.")
    return tuple(words)


def _position(moment: Sequence[Number]) -> tuple[float, float]:
    """Return a point; coordinates that overflowed, which a checkpoint stores as null, become NaN."""
    x, y = (math.nan if value is None else float(value) for value in moment)
    return x, y


def circle_figure(circles: Rows, noise: float) -> Figure:
    first_seed = min(row["seed"] for row in circles)
    shown = [(f"{row['kind']}, width {row['width']}", row) for row in select(circles, seed=first_seed, noise=noise)]
    rows = [
        Point(*_position(moment[arc]), series=f"token {arc + 1}", panel=panel)
        for panel, row in shown
        for arc in (0, 1)
        for moment in row["track"]
    ]
    circle = arcs(100).transpose(0, 1).flatten(0, 1).tolist()
    rows += [Point(x, y, "circle", panel, dashed=True) for panel, _ in shown for x, y in [*circle, circle[0]]]
    where = trained_on(noise)
    caption = f"Two tokens, one block applied repeatedly, trained on {where}: from the open mark to the full one."
    title = f"E. Walking a circle, trained on {where}"
    return Figure(f"E-circle-{noise:g}", title, caption, "x", "y", tuple(rows), "tracks")
