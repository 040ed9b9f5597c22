"""How far a mean can be trusted, by drawing the same number of texts again and again from those that were seen.

The interval holds the middle 95% of the means of these draws. It assumes nothing of how the numbers are spread, but
that texts are independent, and it is too narrow where they are few (below ten or so).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 2000
LEVEL = 0.95


def bootstrap_mean(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The mean, and the ends of its interval; both ends are the mean where there is one value."""
    given = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = given[rng.integers(0, len(given), size=(DRAWS, len(given)))].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(given.mean()), float(low), float(high)
