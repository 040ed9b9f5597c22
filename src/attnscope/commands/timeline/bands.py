"""Which number of a run left its band first, and how long before the loss did.

The band at a look is the median of the `LOOKS` looks before it, plus and minus `WIDTH` robust standard deviations
(1.4826 times the median distance from the median), but at least `LEAST` of the median. A number has left its band if it
is outside, on the same side, at `HELD` looks in a row; the band stays that of the first of them. So a single odd batch
does not count, and neither does a slow drift, which widens the band. Of a measure's parts the first is judged.

`WIDTH` and `HELD` were set on healthy runs, and their rate of false departures was measured on others (docs/watch.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.timeline.reduce import card_of, of_heads, worry

LOOKS, HELD, WIDTH, LEAST = 20, 3, 12.0, 0.05
AROUND_ZERO = 1e-3  # half of the band of a number that was 0
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Departure:
    """A number that left its band at `step`. `key` is None for a number of the whole training, called `name`."""

    step: int
    name: str
    key: Key | None
    layer: int | None
    value: float
    low: float
    high: float


def departures(run: Timeline) -> tuple[Departure, ...]:
    """Return the first departure of every number of the run, the earliest first."""
    found = [one for name, key, numbers in _series(run) if (one := _first(run, name, key, numbers)) is not None]
    return tuple(sorted(found, key=lambda one: (one.step, one.key is None)))


def _series(run: Timeline) -> Iterator[tuple[str, Key | None, Array]]:
    """Yield numbers as [looks, places]."""
    yield "loss", None, run.mean_losses[:, None]
    yield "gradient norm", None, run.training("gradient_norm")[:, None]
    for key in run.keys:
        card = card_of(run, key)
        if key[1] != card.parts[0]:
            continue
        numbers = of_heads(run.numbers(key), worry(card))
        if numbers.shape[1]:
            yield key[0], key, numbers


def _first(run: Timeline, name: str, key: Key | None, numbers: Array) -> Departure | None:
    for look in range(LOOKS, len(numbers) - HELD + 1):
        before, now = numbers[look - LOOKS : look], numbers[look : look + HELD]
        if not np.isfinite(before).any():
            continue
        low, high = band(before)
        out = (now > high).all(axis=0) | (now < low).all(axis=0)
        if out.any():
            place = int(out.argmax())  # the first block, because later blocks inherit from earlier ones
            layer = None if key is None else place
            ends = float(low[place]), float(high[place])
            return Departure(int(run.steps[look]), name, key, layer, float(now[0, place]), *ends)
    return None


def band(before: Array) -> tuple[Array, Array]:
    """Return the ends of the band of every place; NaN where fewer than half of the looks have a number."""
    known = np.isfinite(before).sum(axis=0) * 2 > len(before)
    held = np.where(known, before, 0.0)
    middle = np.nanmedian(held, axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(held - middle), axis=0)
    half = np.maximum(WIDTH * spread, np.where(middle == 0, AROUND_ZERO, LEAST * np.abs(middle)))
    return np.where(known, middle - half, np.nan), np.where(known, middle + half, np.nan)
