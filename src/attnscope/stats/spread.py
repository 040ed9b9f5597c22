"""Means over prompts with their error bars, many at once, by drawing the prompts again (see `bootstrap`).

`low` and `high` hold each mean for itself: of a hundred numbers that are zero, five are outside by chance. `band` holds
all of them together: with m_j a mean, s_j its standard error and m*_j the mean of a draw,

    band = m_j -+ q s_j,      q the 95% quantile over draws of  max over j of |m*_j - m_j| / s_j

so that, in 95 of 100 repetitions, no true mean at all is outside (a simultaneous interval; Romano and Wolf 2005 use
the same maximum). A number that never varies has no error and no width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnscope.stats.bootstrap import DRAWS, LEVEL

Table = Float[np.ndarray, "prompt number"]


@dataclass(frozen=True)
class Spread:
    """Of every column: mean, standard error, its own interval, and how far the band of all reaches to either side."""

    mean: Float[np.ndarray, " number"]
    error: Float[np.ndarray, " number"]
    low: Float[np.ndarray, " number"]
    high: Float[np.ndarray, " number"]
    band: Float[np.ndarray, " number"]


def spread(values: Table, seed: int = 0) -> Spread:
    """One row gives its numbers and no error: the error is infinite, the interval open."""
    rows = len(values)
    mean = values.mean(0)
    if rows < 2:
        nothing = np.full_like(mean, np.inf)
        return Spread(mean, nothing, -nothing, nothing, nothing)
    error = values.std(0, ddof=1) / np.sqrt(rows)
    means = _drawn(rows, seed) @ values
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    varies = error > 0
    farthest = (np.abs(means - mean)[:, varies] / error[varies]).max(1, initial=0.0)
    return Spread(mean, error, low, high, np.quantile(farthest, LEVEL) * error)


@dataclass(frozen=True)
class Correlation:
    """Of two columns of means, with an interval over prompts; None where one of them does not vary."""

    value: float
    low: float
    high: float


def correlations(one: Table, other: Table, seed: int = 0) -> tuple[Correlation | None, Correlation | None]:
    """Pearson's and Spearman's, of the mean of `one` with the mean of `other`, number by number."""
    weights = np.vstack([np.full((1, len(one)), 1 / len(one)), _drawn(len(one), seed)])  # all prompts, then the draws
    a, b = weights @ one, weights @ other
    a[0], b[0] = one.mean(0), other.mean(0)
    known = len(one) > 1
    return _correlation(a, b, known), _correlation(ranks(a), ranks(b), known)


def _correlation(a: Table, b: Table, known: bool) -> Correlation | None:
    """Row by row: that of the first, and where the others are."""
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    if sizes[0] == 0:
        return None
    found = (a * b).sum(1)[sizes > 0] / sizes[sizes > 0]
    if not known:
        return Correlation(float(found[0]), -1.0, 1.0)
    low, high = np.quantile(found[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Correlation(float(found[0]), float(low), float(high))


def ranks(values: Table) -> Table:
    """In every row from the smallest; equal numbers share the mean of their places."""
    from scipy.stats import rankdata  # slow to import, and seldom needed

    found: Table = rankdata(values, axis=1)
    return found


def _drawn(rows: int, seed: int) -> Float[np.ndarray, "draw row"]:
    """How much each row weighs in each draw."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, rows, size=(DRAWS, rows))
    weights = np.zeros((DRAWS, rows))
    np.add.at(weights, (np.arange(DRAWS)[:, None], chosen), 1.0 / rows)
    return weights
