"""How far a mean difference can be trusted: Student's interval over pairs.

With differences d_1..d_n of the same sequences under two models, mean(d) +- t_{n-1, 0.975} sd(d) / sqrt(n) holds the
mean over all such sequences in 95 of 100 draws, where differences are independent and not too far from normal. Pairing
takes out what makes one text harder than another, which is far larger than what a remedy does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its 95% interval; infinite ends where a single pair says nothing of the spread."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def sure(self) -> bool:
        """Whether zero is outside: a difference that chance alone would seldom make."""
        return self.low > 0 or self.high < 0


def paired_interval(before: Sequence[float], after: Sequence[float]) -> Interval:
    """The mean of `after - before` with its interval."""
    apart = [b - a for a, b in zip(before, after, strict=True)]
    n = len(apart)
    mean = math.fsum(apart) / n
    if n < 2:
        return Interval(mean, -math.inf, math.inf, n)
    variance = math.fsum((one - mean) ** 2 for one in apart) / (n - 1)
    half = _student(n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def _student(freedom: int) -> float:
    """The 97.5% quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))
