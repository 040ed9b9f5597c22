"""Means over prompts with their error bars, many at once, and correlations of such means.

`low` and `high` bound each mean alone, by the bootstrap-t over prompts (`intervals`): of a hundred numbers that are
zero, five are outside by chance. `band` bounds all of them together: in 95 of 100 repetitions no number whose true mean
is zero is called different from zero (`simultaneous_means`). A number that never varies has no error and no width. With
too few prompts (`fewest`) the band is infinite.

Correlations are over numbers (heads), while prompts are the random sample. Resampling prompts would add their noise a
second time, and noise makes every correlation smaller: the draws then lie below the correlation itself. So the interval
is computed by leaving out one prompt at a time (the jackknife), on z = artanh r:

    z -+ t_{n-1} se,    se^2 = (n - 1) / n sum_i (z_i - mean z)^2,    z_i without prompt i

It is an interval for the correlation of means over *this many* prompts. If the noise of both sides is independent, the
correlation of the true means is farther from zero: r is about sqrt(rel_a rel_b) times it (Spearman 1904). Noise that
both share (they use the same prompts) adds to r instead. The reliability rel of each side is given too: it is the
correlation of the means over two halves of the prompts, over many ways to halve them, stepped up to all prompts by 2 h
/ (1 + h) (Spearman and Brown 1910).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnscope.stats.intervals import LEVEL, simultaneous_means, single_means

HALVES = 200  # number of random ways to halve the prompts
FEWEST_TO_HALVE = 4
ALMOST = 1 - 1e-12  # correlations are clipped here, because artanh(1) is infinite

Table = Float[np.ndarray, "prompt number"]


@dataclass(frozen=True)
class Spread:
    """For every column: the mean, its standard error, its own interval, and the half-width of the simultaneous band."""

    mean: Float[np.ndarray, " number"]
    error: Float[np.ndarray, " number"]
    low: Float[np.ndarray, " number"]
    high: Float[np.ndarray, " number"]
    band: Float[np.ndarray, " number"]


def spread(values: Table, seed: int = 0) -> Spread:
    """Return the spread of every column. With one row the errors are infinite."""
    rows = len(values)
    mean = values.mean(0)
    if rows < 2:
        nothing = np.full_like(mean, np.inf)
        return Spread(mean, nothing, -nothing, nothing, nothing)
    error = values.std(0, ddof=1) / np.sqrt(rows)
    _, low, high = single_means(values, np.ones(rows), seed)
    _, band = simultaneous_means(values, np.ones(rows), seed)
    return Spread(mean, error, low, high, band)


@dataclass(frozen=True)
class Correlation:
    """A correlation of two columns of means, with an interval over prompts.

    `reliable` are the reliabilities of both sides; None if there are too few prompts to halve.
    """

    value: float
    low: float
    high: float
    reliable: tuple[float, float] | None = None

    @property
    def most(self) -> float | None:
        """Approximately the largest correlation possible with this much independent noise on both sides."""
        return None if self.reliable is None else float(np.sqrt(np.prod(np.clip(self.reliable, 0.0, 1.0))))


def correlations(one: Table, other: Table, seed: int = 0) -> tuple[Correlation | None, Correlation | None]:
    """Return Pearson's and Spearman's correlation of the means of both tables; None if one does not vary."""
    return _correlation(one, other, seed, lambda means: means), _correlation(one, other, seed, ranks)


def _correlation(first: Table, second: Table, seed: int, scale: Callable[[Table], Table]) -> Correlation | None:
    rows = len(first)
    value = _row_by_row(scale(first.mean(0)[None]), scale(second.mean(0)[None]))[0]
    if np.isnan(value):
        return None
    without = (1 - np.eye(rows)) / max(rows - 1, 1)
    left = _row_by_row(scale(without @ first), scale(without @ second))
    if rows < 2 or np.isnan(left).any():
        return Correlation(float(value), -1.0, 1.0)
    from scipy.special import stdtrit  # slow to import, and seldom needed

    z, others = (np.arctanh(np.clip(r, -ALMOST, ALMOST)) for r in (value, left))
    error = np.sqrt((rows - 1) / rows * np.square(others - others.mean()).sum())
    off = stdtrit(rows - 1, (1 + LEVEL) / 2) * error
    reliable = None if rows < FEWEST_TO_HALVE else (_reliable(first, seed, scale), _reliable(second, seed, scale))
    return Correlation(float(value), float(np.tanh(z - off)), float(np.tanh(z + off)), reliable)


def _reliable(table: Table, seed: int, scale: Callable[[Table], Table]) -> float:
    """Estimate how well these means would correlate with means over equally many other prompts, from two halves."""
    rows = len(table)
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(rows), (HALVES, 1)), axis=1)
    first = (order < rows // 2) / (rows // 2)
    second = (order >= rows // 2) / (rows - rows // 2)
    h = float(np.nanmean(_row_by_row(scale(first @ table), scale(second @ table))))
    return 2 * h / (1 + h) if h > 0 else 0.0


def _row_by_row(a: Table, b: Table) -> Float[np.ndarray, " row"]:
    """Return Pearson's correlation of every row of a with the same row of b; NaN if one does not vary."""
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    found: np.ndarray = np.divide((a * b).sum(1), sizes, out=np.full(len(a), np.nan), where=sizes > 0)
    return found


def ranks(values: Table) -> Table:
    """Rank each row from the smallest; equal numbers share their mean rank."""
    from scipy.stats import rankdata  # slow to import, and seldom needed

    found: Table = rankdata(values, axis=1)
    return found
