"""A histogram of one row of numbers: edges as plotting libraries want them, counts, and an exact merge.

It is read from a quantile sketch, whose buckets are its bins: they are the same for all data, so nobody chooses a range
beforehand and histograms of shards add up to the histogram of the whole. Bins differ in width (each is at most 1/64 of
its distance from zero): divide `counts` by `np.diff(edges)` to draw a density.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Histogram:
    """`counts[i]` numbers lie between `edges[i]` and `edges[i + 1]`; a stretch without numbers is one bin of count 0.

    Nothing seen: no edges and no counts.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]

    @classmethod
    def of_bins(cls, bins: Mapping[tuple[float, float], int]) -> Histogram:
        """From the count of each bin (low, high) that holds something."""
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
        """The bins that hold something."""
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
