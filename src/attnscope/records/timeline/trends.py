"""What a run did, beside its alarms: when the loss showed trouble, and which numbers moved most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.records.timeline.timeline import Key, Timeline

TROUBLE = 0.2
"""The loss shows trouble at the first look at which it is this share above the least before it, or not finite."""


@dataclass(frozen=True)
class Trend:
    """One place from its first number to its last; `head` is None where there is one number a layer."""

    key: Key
    layer: int
    head: int | None
    first: float
    last: float
    moved: float  # in units of how far the places of this measure are apart at the first look, or of its size


def loss_trouble(run: Timeline) -> int | None:
    """The step at which the loss showed trouble; None where it never did or nobody told it."""
    told = np.isfinite(run.losses)
    if not told.any():
        return None
    steps, losses = run.steps[told], run.losses[told]
    least = np.minimum.accumulate(losses)
    above = losses > least + TROUBLE * np.abs(least)
    return int(steps[above.argmax()]) if above.any() else None


def trends(run: Timeline, most: int = 5) -> tuple[Trend, ...]:
    """The places that moved most, one for each measure and site, largest movement first."""
    found = sorted(_largest(run), key=lambda trend: (-trend.moved, trend.key))
    return tuple(found[:most])


def _largest(run: Timeline) -> Iterator[Trend]:
    for key in run.keys:
        card = run.header.measures.get(key[0])
        if card is not None and key[1] != card.parts[0]:
            continue
        numbers = run.numbers(key)
        first, last = _ends(numbers)
        with np.errstate(invalid="ignore"):
            change = np.abs(last - first)
        if not np.isfinite(change).any():
            continue
        size = float(np.nanmax(np.abs(first)))
        apart = float(np.nanstd(first)) + 0.05 * size  # of a number that is the same everywhere, a share of its size
        place = np.unravel_index(int(np.nanargmax(change)), change.shape)
        moved = float(change[place]) / apart if apart > 0 else 0.0
        if moved > 0:
            head = int(place[1]) if len(place) > 1 else None
            yield Trend(key, int(place[0]), head, float(first[place]), float(last[place]), moved)


def _ends(numbers: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first and the last finite number of every place; NaN where there is none."""
    known = np.isfinite(numbers)
    if not len(numbers):
        empty = np.full(numbers.shape[1:], np.nan)
        return empty, empty
    first = known.argmax(axis=0)
    last = len(numbers) - 1 - known[::-1].argmax(axis=0)
    begin, end = (np.take_along_axis(numbers, at[None], axis=0)[0] for at in (first, last))
    return begin, end
