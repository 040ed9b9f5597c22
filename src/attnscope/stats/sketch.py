"""Quantiles of many numbers in little memory, with a stated relative error, merged exactly.

The idea is from DDSketch (Masson, Rim, Lee 2019, arXiv:1908.10693): count values in buckets whose width grows with the
value, so that any quantile is known to a fixed relative error. Its logarithmic buckets are replaced here by their
piecewise linear form, the first bits of the float itself: sign, exponent and 6 bits of mantissa. Every power of two is
cut into 64 equal buckets, so a bucket [a, a + w) has w <= a/64, and its middle is within a/128 of everything in it:

    |estimate - true| <= |true| / 128 < 0.8 %       for every quantile

Buckets come from the bits, not from a logarithm, so every machine and every batch size puts a value in the same bucket.
Zero has its own bucket (with subnormals below 3.5e-310); negative values mirror positive ones. Buckets are the same for
all data, so the sketch is an exactly mergeable histogram too, and no range has to be chosen beforehand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnscope.stats.moments import Shape
from attnscope.stats.peak import Tally

RELATIVE_ERROR = 1 / 128
_DROPPED_BITS = 52 - 6


@dataclass(frozen=True, eq=False)
class Histogram:
    """A histogram: `counts[i]` numbers lie between `edges[i]` and `edges[i + 1]`; a range without numbers is one bin of
    count 0.

    Bins differ in width (at most 1/64 of the distance from zero): divide `counts` by `np.diff(edges)` for a density.
    Without numbers there are no edges and no counts.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]

    @classmethod
    def of_bins(cls, bins: Mapping[tuple[float, float], int]) -> Histogram:
        """Make a histogram from the count of each non-empty bin (low, high)."""
        edges: list[float] = []
        counts: list[int] = []
        for (low, high), count in sorted(bins.items()):
            if edges and low < edges[-1]:
                raise ValueError("bins that overlap do not merge")
            if edges and low > edges[-1]:
                edges.append(low)
                counts.append(0)
            edges += [high] if edges else [low, high]
            counts.append(count)
        return cls(np.array(edges, np.float64), np.array(counts, np.int64))

    @property
    def bins(self) -> dict[tuple[float, float], int]:
        """The non-empty bins."""
        rows = zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), self.counts.tolist(), strict=True)
        return {(low, high): count for low, high, count in rows if count}

    def merge(self, other: Histogram) -> Histogram:
        return Histogram.of_bins(Counter(self.bins) + Counter(other.bins))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Histogram)
            and np.array_equal(self.edges, other.edges)
            and np.array_equal(self.counts, other.counts)
        )


@dataclass(frozen=True)
class QuantileSketch:
    """A sketch of quantiles: a tally of bucket numbers. NaN and infinity are ignored (`Moments` counts them)."""

    tally: Tally

    @classmethod
    def empty(cls, shape: Shape = ()) -> QuantileSketch:
        return cls(Tally.empty(shape))

    @classmethod
    def of(cls, values: Float[np.ndarray, " batch *shape"]) -> QuantileSketch:
        finite = np.isfinite(values)
        return cls(Tally.of(_buckets(np.where(finite, values, 0.0).astype(np.float64)), keep=finite))

    def merge(self, other: QuantileSketch) -> QuantileSketch:
        return QuantileSketch(self.tally.merge(other.tally))

    def quantile(self, share: float) -> NDArray[np.float64]:
        """Return the quantile at `share`; NaN for a cell without numbers.

        Of n sorted numbers this is the one at rank share (n - 1), counted from 0 and rounded to the nearest rank,
        halves up: the median of two numbers is the larger. So every answer is near a number that was seen.
        """
        if not 0 <= share <= 1:
            raise ValueError("a quantile lies between 0 and 1")
        quantiles = np.full(len(cells := self.tally.cells()), np.nan)
        for place, (buckets, counts) in enumerate(cells):
            if len(buckets):
                upto = np.cumsum(counts)
                rank = math.floor(share * (int(upto[-1]) - 1) + 0.5)
                quantiles[place] = _middle(buckets[np.searchsorted(upto, rank, side="right")])
        return quantiles.reshape(self.tally.shape)

    def histogram(self, place: int = 0) -> Histogram:
        """Return the histogram of one head (in flat order), in the sketch's own buckets."""
        buckets, counts = self.tally.cells()[place]
        return Histogram.of_bins({_ends(b): n for b, n in zip(buckets.tolist(), counts.tolist(), strict=True)})

    def to_json(self) -> list[list[int]]:
        return self.tally.to_json()

    @classmethod
    def from_json(cls, data: Sequence[Sequence[int]], shape: Shape) -> QuantileSketch:
        return cls(Tally.from_json(data, shape))


def bucket_of(value: float) -> int:
    """Return the number of the bucket that holds a finite value."""
    return int(_buckets(np.asarray(value, np.float64)))


def _buckets(values: NDArray[np.float64]) -> NDArray[np.int64]:
    bucket = np.abs(values).view(np.int64) >> _DROPPED_BITS
    return np.asarray(np.where(values < 0, -bucket, bucket))


def _middle(bucket: Any) -> float:
    """Return the middle between a bucket's edges, which are floats with the dropped bits all zero."""
    if bucket == 0:
        return 0.0
    bits = np.int64((abs(int(bucket)) << _DROPPED_BITS) | (1 << (_DROPPED_BITS - 1)))
    return float(np.copysign(bits.view(np.float64), bucket))


def _ends(bucket: int) -> tuple[float, float]:
    """Return the lower and upper edge of a bucket. The bucket of zero reaches to its neighbours on both sides."""
    return _edge(bucket if bucket > 0 else bucket - 1), _edge(bucket if bucket < 0 else bucket + 1)


def _edge(bucket: int) -> float:
    """Return the edge of a bucket that is nearer to zero."""
    return float(np.copysign(np.int64(abs(bucket) << _DROPPED_BITS).view(np.float64), bucket))
