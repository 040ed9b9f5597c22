"""Confidence intervals of means: of one number, of many numbers together, and of paired differences.

Two models read the same sequences, and d_i is their difference on sequence i. Pairing removes the variation between
easy and hard texts, which is far larger than the effect of a remedy.

Sequences that were cut from one document are not independent: a name that one model knows better appears in all of
them. Documents are drawn at random, so the spread is taken over documents (Liang and Zeger 1986, the robust variance of
a clustered mean). With n sequences from g documents, and r_k the sum of d_i - mean(d) over document k,

    error = sqrt(g / (g - 1) * sum_k r_k^2) / n

Student's interval, mean -+ t_{g-1, 0.975} error, is too narrow for skewed numbers: of 8 exponential ones it holds the
mean in 90 of 100 samples. The bootstrap-t (Efron 1979; Hall 1988) learns the skew from the sample. It draws g documents
with replacement, again and again, and computes in every draw

    t* = (mean of the draw - mean) / error of the draw

whose quantiles replace those of Student: the interval is mean - t*_{0.98} error to mean - t*_{0.02} error. Where
Student's end is farther out, that end is taken, because few numbers show too little of long symmetric tails. Dividing
by the error *of the draw* makes the interval wide enough with few documents; the middle 95% of the means of draws held
the mean in only 72 to 91 of 100 samples of 6 to 16. `docs/statistics.md` has the coverage, by simulation. No interval
holds for every shape: a rare value that no text shows cannot be known, so below ENOUGH documents nothing is sure.

Intervals hold for these models on other text of the same kind. The variation between training seeds is not included.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

DRAWS = 2000
LEVEL = 0.95
INNER = 0.96  # share of draws inside an interval: a sample shows too little of a long tail, and this makes up for it
ENOUGH = 24  # documents: with fewer, the interval of a single number can hold in fewer than 93 of 100 samples
ENOUGH_TOGETHER = 16  # the same for three numbers or more, whose common intervals are wider
GroupSums = Float[np.ndarray, "group number"]
GroupSizes = Float[np.ndarray, " group"]
PerNumber = Float[np.ndarray, " number"]


def bootstrap_mean(
    values: Sequence[float], seed: int = 0, groups: Sequence[int] | None = None
) -> tuple[float, float, float]:
    """Return the mean and the ends of its interval. The ends are infinite with one value (or one group)."""
    mean, low, high = single_means(*grouped(np.asarray(values, dtype=np.float64)[:, None], groups), seed)
    return float(mean[0]), float(low[0]), float(high[0])


def single_means(
    sums: GroupSums, sizes: GroupSizes, seed: int = 0, inner: float = INNER
) -> tuple[PerNumber, PerNumber, PerNumber]:
    """Return means of many numbers, from their sums over groups of `sizes`, and the interval of each one alone.

    A number that is the same in all groups has no error and no width. `inner` is the share of draws inside an interval.
    """
    mean, error = _mean_and_error(sums, sizes)
    if len(sums) < 2:
        return mean, np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    t, reach = _drawn_t(sums, sizes, seed), student(len(sums) - 1, inner)
    below, above = (np.maximum(_end(side, inner), reach) for side in (t, -t))
    return mean, mean - _times(below, error), mean + _times(above, error)


def simultaneous_means(sums: GroupSums, sizes: GroupSizes, seed: int = 0) -> tuple[PerNumber, PerNumber]:
    """Return means of many numbers, from their sums over groups of `sizes`, and the half-width of each interval.

    Of a hundred numbers that are zero, five are beyond their own 95% interval by chance alone. Here *all* intervals
    hold together in 95 of 100 experiments: the largest t* of all numbers, and the largest -t*, are kept from every
    draw, and the larger of their 98% points is c in mean -+ c error (max-t: Westfall and Young 1993). Draws of whole
    groups keep whatever dependence the numbers have. Random signs instead of draws would assume that numbers are
    symmetric: of 144 exponential ones with mean zero, some was called sure in 47 to 71 of 100 experiments.

    The intervals are infinite with too few groups (`fewest`).
    """
    mean, error = _mean_and_error(sums, sizes)
    if len(sums) < fewest(sums.shape[1]):
        return mean, np.full_like(error, np.inf)
    t = _drawn_t(sums, sizes, seed)
    c = max(
        student(len(sums) - 1, INNER), *(float(_end(side.max(1, keepdims=True, initial=0.0))[0]) for side in (t, -t))
    )
    return mean, _times(np.full_like(error, c), error)


def fewest(numbers: int = 1) -> int:
    """Return how many groups (documents, prompts) are needed to call one of these numbers different from zero."""
    return ENOUGH if numbers < 3 else ENOUGH_TOGETHER


def simultaneous_differences(
    values: Sequence[Sequence[float]], seed: int = 0, groups: Sequence[int] | None = None
) -> tuple[Float[np.ndarray, "one one"], Float[np.ndarray, "one one"]]:
    """Return the differences of means of all pairs of rows, and half-widths such that all intervals hold together.

    Rows are methods and columns the same texts. A hard text is hard for all methods, so the difference of two rows is
    taken text by text.
    """
    sums, sizes = grouped(np.asarray(values, dtype=np.float64).T, groups)
    methods = sums.shape[1]
    one, other = np.triu_indices(methods, 1)
    apart, off = np.zeros((methods, methods)), np.zeros((methods, methods))
    apart[one, other], off[one, other] = simultaneous_means(sums[:, one] - sums[:, other], sizes, seed)
    return apart - apart.T, off + off.T


def _mean_and_error(sums: GroupSums, sizes: GroupSizes) -> tuple[PerNumber, PerNumber]:
    """Return the mean of every number and its standard error, with which rounding errors count as 0."""
    count, mean = len(sums), sums.sum(0) / sizes.sum()
    rest = sums - sizes[:, None] * mean
    squares = np.square(rest).sum(0)
    squares[squares <= 1e-24 * np.square(sums).sum(0)] = 0.0
    return mean, np.sqrt(count / max(count - 1, 1) * squares) / sizes.sum()


def _drawn_t(sums: GroupSums, sizes: GroupSizes, seed: int) -> Float[np.ndarray, "draw number"]:
    """Return t* of every draw of groups; infinite if the draw has another mean and no spread.

    With w_g how often group g was drawn, R_g = S_g - n_g m its sum less its share of the whole mean, and
    N = sum w_g n_g, the mean of a draw is off by u = sum w_g R_g / N, and its squared error is

        G / (G - 1) * sum w_g (R_g - n_g u)^2 / N^2 = G / (G - 1) * (sum w R^2 - 2 u sum w R n + u^2 sum w n^2) / N^2
    """
    count = len(sums)
    rest = sums - sizes[:, None] * (sums.sum(0) / sizes.sum())
    drawn = _drawn(count, seed)
    total = (drawn @ sizes)[:, None]
    off = drawn @ rest / total
    whole = drawn @ np.square(rest)
    squares = whole - 2 * off * (drawn @ (rest * sizes[:, None])) + off**2 * (drawn @ np.square(sizes))[:, None]
    # A spread or a mean at rounding level counts as 0.
    small = 1e-12 * np.square(rest).sum(0)
    error = np.sqrt(count / (count - 1) * np.maximum(squares, 0.0)) / total
    otherwise = np.where(np.square(off * total) > small, np.copysign(np.inf, off), 0.0)
    found: np.ndarray = np.divide(off, error, out=otherwise, where=squares > small)
    return found


def _end(t: Float[np.ndarray, "draw number"], inner: float = INNER) -> PerNumber:
    """Return the upper end of the inner draws."""
    found: np.ndarray = np.quantile(t, (1 + inner) / 2, axis=0, method="higher")
    return found


@lru_cache(maxsize=16)
def _drawn(count: int, seed: int) -> Float[np.ndarray, "draw group"]:
    """Return how often each group is drawn."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(np.float64)


def _times(reach: PerNumber, error: PerNumber) -> PerNumber:
    """Return the product, and 0 where the error is 0 even if the reach is infinite."""
    found: np.ndarray = np.multiply(reach, error, out=np.zeros_like(error), where=error > 0)
    return found


def grouped(
    values: Float[np.ndarray, "text one"], groups: Sequence[int] | None
) -> tuple[Float[np.ndarray, "group one"], GroupSizes]:
    """Return the sums over groups, and the sizes of groups."""
    if groups is None:
        return values, np.ones(len(values))
    _, number = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.zeros((int(number.max()) + 1, values.shape[1]))
    np.add.at(sums, number, values)
    return sums, np.bincount(number).astype(np.float64)


@dataclass(frozen=True)
class Interval:
    """A mean over `n` sequences from `texts` texts and its 95% interval, which is infinite for a single text."""

    mean: float
    low: float
    high: float
    n: int
    texts: int

    @property
    def sure(self) -> bool:
        """Whether zero is outside the interval."""
        return self.low > 0 or self.high < 0


CERTAIN = 0.99  # share of draws inside the interval of few groups, see `few_mean`
FEWEST_DRAWN = 5  # groups: of fewer, a draw too often has a single one, and no spread


def few_mean(sums: Sequence[float], sizes: Sequence[float]) -> Interval:
    """Return the mean of one number, from its sums over a few groups, with an interval that also holds for skew.

    Below ENOUGH groups a sample shows too little of a long tail. 99% of draws instead of 96% make up for that: the
    mean of 8 lognormal numbers was inside in 95 of 100 samples, of 16 in 97 (tests/stats/test_few_mean.py). Fewer than
    FEWEST_DRAWN groups get Student's interval at 99.5%, which held in 95 to 99 of 100. A rare value that no group shows
    cannot be known: of 8 numbers, a fifth of which are far away, the interval held in 83 of 100.
    """
    total, weights = np.asarray(sums, dtype=np.float64)[:, None], np.asarray(sizes, dtype=np.float64)
    groups = len(sums)
    if groups >= FEWEST_DRAWN:
        inner = CERTAIN if groups < ENOUGH else INNER
        mean, low, high = (float(number[0]) for number in single_means(total, weights, inner=inner))
        return Interval(mean, low, high, groups, groups)
    mean, error = (float(number[0]) for number in _mean_and_error(total, weights))
    half = math.inf if groups < 2 else 0.0 if not error else student(groups - 1, 0.995) * error
    return Interval(mean, mean - half, mean + half, groups, groups)


def unpaired_difference(
    before: tuple[Sequence[float], Sequence[float]], after: tuple[Sequence[float], Sequence[float]]
) -> Interval:
    """Return the difference of two means of separate groups, each given by sums and sizes, with Student's interval.

    The errors add in squares, and the smaller number of groups gives the degrees of freedom (Welch, on the safe side).
    """
    sides = [
        (np.asarray(sums, dtype=np.float64)[:, None], np.asarray(sizes, dtype=np.float64))
        for sums, sizes in (before, after)
    ]
    (old, one), (new, other) = ((float(n[0]) for n in _mean_and_error(*side)) for side in sides)
    groups = min(len(sums) for sums, _ in (before, after))
    if groups < 2:
        return Interval(new - old, -math.inf, math.inf, groups, groups)
    level = 0.995 if groups < FEWEST_DRAWN else CERTAIN if groups < ENOUGH else INNER
    half = student(groups - 1, level) * math.hypot(one, other)
    return Interval(new - old, new - old - half, new - old + half, groups, groups)


def paired_interval(
    before: Sequence[float], after: Sequence[float], texts: Sequence[Hashable] = (), *, level: float = LEVEL
) -> Interval:
    """Return the mean of `after - before` with Student's interval, which assumes nearly normal differences.

    `texts` names the text of each sequence (default: all differ).
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    n = len(differences)
    mean = math.fsum(differences) / n
    rest: dict[Hashable, list[float]] = {}
    for text, difference in zip(texts or range(n), differences, strict=True):
        rest.setdefault(text, []).append(difference - mean)
    drawn = len(rest)
    if drawn < 2:
        return Interval(mean, -math.inf, math.inf, n, drawn)
    spread = math.fsum(math.fsum(some) ** 2 for some in rest.values())
    half = student(drawn - 1, level) * math.sqrt(drawn / (drawn - 1) * spread) / n
    return Interval(mean, mean - half, mean + half, n, drawn)


def student(freedom: int, level: float = LEVEL) -> float:
    """Return the end of the middle `level` of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def share_interval(right: int, of: int) -> tuple[float, float, float]:
    """Return a share of independent cases and its exact 95% interval (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    beyond = (1 - LEVEL) / 2
    low = float(betaincinv(right, of - right + 1, beyond)) if right else 0.0
    high = float(betaincinv(right + 1, of - right, 1 - beyond)) if right < of else 1.0
    return right / of, low, high
