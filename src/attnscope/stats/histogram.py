"""Equal bins over a range that is known beforehand (a share between 0 and 1, a cosine), merged exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnscope.stats.moments import Shape
from attnscope.stats.tally import Tally

BINS = 20


@dataclass(frozen=True)
class Histogram:
    """Counts in `bins` equal bins from `low` to `high`.

    Rounding can carry a value a hair outside its range (a cosine of 1.0000001): the outermost bins take
    those.
    """

    low: float
    high: float
    bins: int
    tally: Tally

    @classmethod
    def empty(cls, low: float, high: float, shape: Shape = (), bins: int = BINS) -> Histogram:
        return cls.of(np.empty((0, *shape)), low, high, bins)

    @classmethod
    def of(
        cls, values: Float[np.ndarray, "batch *shape"], low: float, high: float, bins: int = BINS
    ) -> Histogram:
        if not (low < high and np.isfinite([low, high]).all() and bins > 0):
            raise ValueError(f"no {bins} bins fit between {low} and {high}")
        finite = np.isfinite(values)
        inside = np.clip(np.where(finite, values, low).astype(np.float64), low, high)
        place = np.minimum(np.floor((inside - low) / (high - low) * bins), bins - 1)
        return cls(low, high, bins, Tally.of(place.astype(np.int64), keep=finite))

    def merge(self, other: Histogram) -> Histogram:
        if (self.low, self.high, self.bins) != (other.low, other.high, other.bins):
            raise ValueError("histograms with different bins do not merge")
        return Histogram(self.low, self.high, self.bins, self.tally.merge(other.tally))

    @property
    def edges(self) -> Float[np.ndarray, "edges"]:
        return np.linspace(self.low, self.high, self.bins + 1)

    @property
    def counts(self) -> Int[np.ndarray, "*shape bins"]:
        rows = [np.bincount(labels, counts, self.bins) for labels, counts in self.tally.cells()]
        return np.array(rows, dtype=np.int64).reshape(*self.tally.shape, self.bins)

    def to_json(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "bins": self.bins, "counts": self.tally.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], shape: Shape) -> Histogram:
        tally = Tally.from_json(data["counts"], shape)
        return cls(float(data["low"]), float(data["high"]), int(data["bins"]), tally)
