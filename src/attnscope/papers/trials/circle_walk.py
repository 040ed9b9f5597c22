"""One layer, trained to take one step along a circle, applied hundreds of times: experiment E of arXiv:2103.03404."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Figure, Number, Point, Session
from attnscope.papers.models.points import RADIUS, Kind, arcs, circle_loss, circle_model, gaps, walk

Record = Mapping[str, Any]

BATCH = 64
RATE = 3e-3
SHOWN = 5  # every fifth moment is kept for the picture


def circle_walk(
    kind: Kind, width: int, noise: float, *, points: int, steps: int, applied: int, seed: int, session: Session
) -> dict[str, Any]:
    """Train, walk, and measure how far the two tokens are apart on the way."""
    name = f"circle-{kind}-{width}-{noise}-{seed}"
    model = circle_model(kind, width, seed)
    losses = train(
        model,
        circle_loss(points, BATCH, noise),
        Recipe(steps, RATE),
        seed=seed,
        kept=session.state_path(name),
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
        "track": torch.round(track[::SHOWN], decimals=4).tolist(),
    }


def circle_numbers(circles: Sequence[Record]) -> dict[str, list[float]]:
    """Gap after the last application, over the narrowest model of every kind."""
    numbers: dict[str, list[float]] = {}
    narrowest = min(one["width"] for one in circles)
    for one in circles:
        if one["width"] == narrowest:
            trained = "beside" if one["noise"] else "on"
            numbers.setdefault(f"gap_{one['kind'].replace(' ', '_')}_trained_{trained}_circle", []).append(one["gap"])
    return numbers


def circle_remarks(circles: Sequence[Record]) -> tuple[str, ...]:
    """How many walks end with the tokens apart, by what was shown in training: is it the layer, or what it has seen?"""
    said = []
    for noise in dict.fromkeys(one["noise"] for one in circles):
        shown = "points beside the circle as well" if noise else "the circle alone"
        kinds = []
        for kind in dict.fromkeys(one["kind"] for one in circles):
            gaps = [one["gap"] for one in circles if one["kind"] == kind and one["noise"] == noise]
            kinds.append(f"{sum(0.5 <= gap <= 2 for gap in gaps)} of {len(gaps)} ({kind})")
        said.append(f"E, shown {shown}: tokens still apart, and near the circle's size, in {', '.join(kinds)} walks.")
    return tuple(said)


def _place(moment: Sequence[Number]) -> tuple[float, float]:
    """Where a token was; a walk that left all numbers behind is NaN there, which the checkpoint keeps as null."""
    x, y = (math.nan if value is None else float(value) for value in moment)
    return x, y


def circle_figure(circles: Sequence[Record], noise: float) -> Figure:
    seed = min(one["seed"] for one in circles)
    shown = [one for one in circles if one["seed"] == seed and one["noise"] == noise]
    rows = [
        Point(*_place(moment[arc]), series=f"token {arc + 1}", panel=f"{one['kind']}, width {one['width']}")
        for one in shown
        for arc in (0, 1)
        for moment in one["track"]
    ]
    circle = arcs(100).transpose(0, 1).flatten(0, 1).tolist()
    for one in shown:
        panel = f"{one['kind']}, width {one['width']}"
        rows += [Point(x, y, "circle", panel, dashed=True) for x, y in [*circle, circle[0]]]
    where = "points beside the circle as well" if noise else "the circle alone"
    caption = f"Two tokens, one layer applied again and again, trained on {where}: from the open mark to the full one."
    return Figure(
        f"E-circle-{noise:g}", f"E. Walking a circle, trained on {where}", caption, "x", "y", tuple(rows), "tracks"
    )
