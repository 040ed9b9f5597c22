"""A block stops learning while others learn: its projections do not move, or get no gradient.

The rule compares the update of a block (the largest of its four projections) with the median of the blocks, and its
gradient likewise. It fires for a block that moved at an earlier look, so a model of which a part is frozen from the
start is quiet. A gradient that is exactly zero is seen at once, although the momentum of Adam still moves the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Array, Firing, History, Limits, rule
from attnscope.core.words import number

PARTS = ("query", "key", "value", "output")


@rule(
    severity="warning",
    reads=("update_ratio", "gradient_norm"),
    summary="A block stops learning while other blocks learn.",
    citation="arXiv:2206.03126",
    advice="Check requires_grad, the parameter groups of the optimiser, and hooks that change gradients.",
    thresholds={"share": 1e-4},
)
def frozen_block(history: History, limits: Limits) -> Iterator[Firing]:
    places: dict[tuple[str, str], list[tuple[str, Array]]] = {}
    for measure, word in (("update_ratio", "update"), ("gradient_norm", "gradient")):
        for place, values in _largest(history, measure).items():
            places.setdefault(place, []).append((word, _of_median(values)))
    for (stack, site), tracks in places.items():
        for word, shares in tracks:
            moved = (shares[:-1] > limits["share"]).any(axis=0) if len(shares) > 1 else np.zeros(shares.shape[1], bool)
            where = (shares[-1] < limits["share"]) & moved
            if where.any():
                least = float(shares[-1][where].min())
                what = f"The {word} of projections is {number(least)} of the median block"
                yield Firing(stack, site, where, least, limits["share"], what)
                break


def _largest(history: History, measure: str) -> dict[tuple[str, str], Array]:
    """Return the largest of the four projections by place, [looks, blocks]; NaN if none is known."""
    found: dict[tuple[str, str], list[Array]] = {}
    for part in PARTS:
        for track in history.tracks(measure, part):
            found.setdefault((track.stack, track.site), []).append(track.values)
    alike = {place: [v for v in all_of if v.shape == all_of[0].shape] for place, all_of in found.items()}
    return {place: np.fmax.reduce(np.stack(values)) for place, values in alike.items()}


def _of_median(values: Array) -> Array:
    """Return values relative to the median block of the same look; NaN where that is 0 or unknown."""
    known = np.isfinite(values)
    middle = np.array([np.median(row[own]) if own.any() else 0.0 for row, own in zip(values, known, strict=True)])
    return np.asarray(values / np.where(middle > 0, middle, np.nan)[:, None])
