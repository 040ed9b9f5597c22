"""Turn rows of numbers into measured quantities, curves and power laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from attnscope.core.experiment import Point

Row = Mapping[str, Any]
Rows = Sequence[Row]


def select(rows: Iterable[Row], **columns: Any) -> list[Row]:
    """Return the rows whose columns have these values, as in `select(rows, part="floor", kind="linear")`.

    Columns are compared from left to right, so those after `part` need to exist only in rows of that part.
    """
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def by_seed(rows: Iterable[Row], seeds: Sequence[int]) -> list[list[Row]]:
    """Return the rows of each seed, in the order of the seeds."""
    every = list(rows)
    return [select(every, seed=seed) for seed in seeds]


def gather(numbers: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """Turn one mapping per seed into one list per quantity, as `Result.measured` needs it."""
    measured: dict[str, list[float]] = {}
    for of_seed in numbers:
        for name, value in of_seed.items():
            measured.setdefault(name, []).append(value)
    return measured


def measure_seeds(
    rows: Iterable[Row], seeds: Sequence[int], numbers_of: Callable[[Rows], Mapping[str, float]]
) -> dict[str, list[float]]:
    """Apply `numbers_of` to the rows of each seed and return one list per quantity."""
    return gather(map(numbers_of, by_seed(rows, seeds)))


def curve(rows: Iterable[Row], x: str, y: str, series: str, panel: str = "", dashed: bool = False) -> list[Point]:
    """Return, for every x in the order of the rows, the median of y over seeds and its range."""
    values: dict[Any, list[float]] = {}
    for row in rows:
        values.setdefault(row[x], []).append(row[y])
    return [Point.over(some, at, series, panel, dashed) for at, some in values.items()]


def curves(rows: Iterable[Row], x: str, y: str, by: str, labels: Mapping[Any, str] | Iterable[str]) -> list[Point]:
    """Return one curve for each value of column `by`; `labels` lists the values or maps them to labels."""
    every, named = list(rows), labels if isinstance(labels, Mapping) else {name: name for name in labels}
    return [point for value, label in named.items() for point in curve(select(every, **{by: value}), x, y, label)]


def steps(lists: Sequence[Sequence[Any]], series: str, panel: str = "", dashed: bool = False) -> list[Point]:
    """Return a curve of list entries against their index, from one list per seed."""
    return [Point.over(some, index, series, panel, dashed) for index, some in enumerate(zip(*lists, strict=True))]


def power_of(sizes: Sequence[float | int], values: Sequence[float | int]) -> float:
    """Fit value = c size^p by least squares of logarithms and return p; NaN if there are fewer than two sizes."""
    if len(set(sizes)) < 2 or min(values) <= 0:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def power_in(rows: Rows, x: str, y: str) -> float:
    """Fit y = c x^p to the rows and return p."""
    return power_of([row[x] for row in rows], [row[y] for row in rows])


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN if one sequence is constant."""
    from scipy.stats import spearmanr

    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(spearmanr(first, second).statistic)


# Which law of growth explains the widths d best? These laws of two constants are compared on the same numbers:
#
#     logarithm   d = a + b ln n          cube root   d = a + b n^(1/3)
#     root        d = a + b n^(1/2)       power       d = b n^p, p free
#
# Errors in ln d are assumed to be Gaussian with one unknown variance. The maximum likelihood of a law is then a
# constant times RSS^(-N/2), where RSS is the sum of its N squared errors. All laws have equally many constants, so none
# is favoured for being more flexible. The advantage of one law over another is
#
#     N/2 ln(RSS_other / RSS_law)   nats; 3 nats are odds of twenty to one.
#
# For d = a + b f(n) let c = a / b, so that ln d = ln b + ln(c + f(n)): ln b is a mean, c is found by a line search.

LAWS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"logarithm": np.log, "cube_root": np.cbrt, "root": np.sqrt}
FLOOR = 1e-12  # least mean squared error: without it, data exactly on one law would make its advantage infinite
GRID = 121


def squared_errors(n: Sequence[float], d: Sequence[float]) -> dict[str, float]:
    """Return, for every law, its smallest mean squared error in ln d."""
    sizes, logs = np.asarray(n, dtype=float), np.log(np.asarray(d, dtype=float))
    errors = {name: _shifted(law(sizes), logs) for name, law in LAWS.items()}
    errors["power"] = float(((logs - np.polyval(np.polyfit(np.log(sizes), logs, 1), np.log(sizes))) ** 2).mean())
    return errors


def advantage_of_logarithm(n: Sequence[float], d: Sequence[float]) -> dict[str, float]:
    """Return by how many nats the log-likelihood of the logarithm exceeds that of each other law."""
    errors = {name: max(error, FLOOR) for name, error in squared_errors(n, d).items()}
    own = errors.pop("logarithm")
    return {name: len(n) / 2 * math.log(error / own) for name, error in errors.items()}


def _shifted(f: Float[np.ndarray, " point"], logs: Float[np.ndarray, " point"]) -> float:
    """Fit ln d = ln b + ln(c + f), searching over ln(c + min f), and return the smallest mean squared error."""
    above, spread = f - f.min(), float(np.ptp(f))

    def error(at: float) -> float:
        return float(np.var(logs - np.log(above + spread * math.exp(at))))

    grid = np.linspace(-12, 12, GRID)
    best = int(np.argmin([error(at) for at in grid]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    return min(error(grid[best]), float(minimize_scalar(error, bounds=around, method="bounded").fun))
