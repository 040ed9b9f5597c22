"""What experiments do with rows of numbers: one row per seed and setting becomes a curve, and a curve a power law."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attnscope.core.experiment import Point


def curve(
    rows: Iterable[Mapping[str, Any]], x: str, y: str, series: str, panel: str = "", dashed: bool = False
) -> list[Point]:
    """For every x, in the order of the rows, the median of y over seeds and its range."""
    found: dict[Any, list[float]] = {}
    for row in rows:
        found.setdefault(row[x], []).append(row[y])
    return [Point.over(values, at, series, panel, dashed) for at, values in found.items()]


def power_of(sizes: Sequence[float | int], values: Sequence[float | int]) -> float:
    """The exponent p of the best c size^p through the points, by least squares of logarithms; NaN without two sizes."""
    if len(set(sizes)) < 2 or min(values) <= 0:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def by_seed(rows: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> list[list[Mapping[str, Any]]]:
    """The rows of each seed, in the order of the seeds."""
    known = list(rows)
    return [[row for row in known if row["seed"] == seed] for seed in seeds]
