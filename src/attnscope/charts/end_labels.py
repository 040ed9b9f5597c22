"""Names at the ends of lines, in place of a legend: an eye that follows a line arrives at its name.

    rows = end_labels({"whole model": (12, 0.6), "attention only": (12, 0.5)}, log=True, domain=(0.1, 1), height=300)

Lines that end close together would have their names on each other: names are moved apart, no further than needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

LINE = 14.0
"""Pixels from one name to the next."""
LETTER = 6.4  # pixels of an average letter of 11 px, rounded up: room that is missing is a name that is cut


def end_labels(
    ends: Mapping[str, tuple[int | float, float]], *, log: bool, domain: tuple[float, float], height: int
) -> list[dict[str, Any]]:
    """{name, x, y} of every name, from where its line ends to where the name stands, in the numbers of the axis."""
    low, high = map(math.log10, domain) if log else domain
    order = sorted(ends, key=lambda name: -ends[name][1])
    wanted = [height * (high - (math.log10(ends[name][1]) if log else ends[name][1])) / (high - low) for name in order]
    rows = []
    for name, place in zip(order, moved_apart(wanted, LINE, 0.0, float(height)), strict=True):
        value = high - place * (high - low) / height
        rows.append({"name": name, "x": ends[name][0], "y": 10.0**value if log else value})
    return rows


def label_room(names: Sequence[str]) -> int:
    """Pixels that names take beside a chart."""
    return math.ceil(LETTER * max(map(len, names), default=0)) + 14


def moved_apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places in rising order, at least `gap` from each other and inside of low..high where they fit, with the least
    squared movement: what is left after taking i * gap away has to rise, which pooling neighbours that do not gives."""
    pools: list[list[float]] = []
    for number, place in enumerate(places):
        pools.append([place - number * gap])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    level = [_mean(pool) for pool in pools for _ in pool]
    most = max(low, high - gap * (len(places) - 1))
    return [min(max(place, low), most) + number * gap for number, place in enumerate(level)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
