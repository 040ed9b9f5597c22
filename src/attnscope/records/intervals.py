"""How far a mean difference can be trusted: Student's interval over pairs, with the text as what was drawn.

Two models are asked about the same sequences, so what counts is d_i, the difference on sequence i. Pairing takes out
what makes one text harder than another, which is far larger than what a remedy does.

Sequences that were cut from one text are not independent: a name that one model knows better comes up in all of them.
What was drawn at random are texts, and so the spread is taken over texts (Liang and Zeger 1986, the robust variance of
a clustered mean). With n sequences from g texts, and r_k the sum of d_i - mean(d) over text k,

    mean(d) +- t_{g-1, 0.975} sqrt(g / (g - 1) * sum_k r_k^2) / n

which is Student's paired interval where every sequence is a text of its own. It speaks of these two models on other
text of the same kind. What another seed of the same training would have made is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from attnscope.stats.bootstrap import LEVEL


@dataclass(frozen=True)
class Interval:
    """A mean over `n` sequences from `texts` texts and its 95% interval; infinite ends where a single text says
    nothing of the spread."""

    mean: float
    low: float
    high: float
    n: int
    texts: int

    @property
    def sure(self) -> bool:
        """Whether zero is outside: a difference that chance alone would seldom make."""
        return self.low > 0 or self.high < 0


def paired_interval(before: Sequence[float], after: Sequence[float], texts: Sequence[Hashable] = ()) -> Interval:
    """The mean of `after - before` with its interval; `texts` says what each was cut from, if not each from its own."""
    apart = [b - a for a, b in zip(before, after, strict=True)]
    n = len(apart)
    mean = math.fsum(apart) / n
    rest: dict[Hashable, list[float]] = {}
    for text, one in zip(texts or range(n), apart, strict=True):
        rest.setdefault(text, []).append(one - mean)
    drawn = len(rest)
    if drawn < 2:
        return Interval(mean, -math.inf, math.inf, n, drawn)
    spread = math.fsum(math.fsum(some) ** 2 for some in rest.values())
    half = student(drawn - 1) * math.sqrt(drawn / (drawn - 1) * spread) / n
    return Interval(mean, mean - half, mean + half, n, drawn)


def student(freedom: int) -> float:
    """The 97.5% quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))
