"""Count, mean, spread, smallest and largest of many numbers, for a whole vector of heads at once.

Merging is exact (see `exact`): batches, shards and resumed runs give the same mean and variance to the last bit. NaN
and infinity are counted and ignored, so that one broken sequence cannot hide the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnscope.core.errors import RefusalError
from attnscope.stats import exact
from attnscope.stats.exact import UNIT, integers, ratio

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Moments:
    """All arrays have the shape of a cell: `()` or `(heads,)`. An empty cell has minimum inf and maximum -inf."""

    count: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    total: NDArray[Any]  # Python integers: sum of values, in units of 2^-1074
    squares: NDArray[Any]  # Python integers: sum of squares, in units of 2^-2148
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]

    @classmethod
    def empty(cls, shape: Shape = ()) -> Moments:
        return cls.of(np.empty((0, *shape)))

    @classmethod
    def of(cls, values: Float[np.ndarray, " batch *shape"]) -> Moments:
        shape = values.shape[1:]
        flat = values.astype(np.float64).reshape(len(values), math.prod(shape)) + 0.0  # -0.0 becomes 0.0
        finite = np.isfinite(flat)
        kept = np.where(finite, flat, 0.0)
        totals, squares = exact.exact_sums(kept)
        count = finite.sum(axis=0).astype(np.int64)
        return cls(
            count=count.reshape(shape),
            nonfinite=(len(flat) - count).reshape(shape),
            total=integers(totals, shape),
            squares=integers(squares, shape),
            minimum=np.where(finite, flat, np.inf).min(axis=0, initial=np.inf).reshape(shape),
            maximum=np.where(finite, flat, -np.inf).max(axis=0, initial=-np.inf).reshape(shape),
        )

    @property
    def shape(self) -> Shape:
        return self.count.shape

    def part(self, number: int) -> Moments:
        """Return one entry along the first axis."""
        cell, shape = slice(number, number + 1), self.shape[1:]
        return Moments(*(getattr(self, name)[cell].reshape(shape) for name in self.__dataclass_fields__))

    def merge(self, other: Moments) -> Moments:
        return Moments(
            count=np.asarray(self.count + other.count),
            nonfinite=np.asarray(self.nonfinite + other.nonfinite),
            total=np.asarray(self.total + other.total, dtype=object),
            squares=np.asarray(self.squares + other.squares, dtype=object),
            minimum=np.asarray(np.minimum(self.minimum, other.minimum)),
            maximum=np.asarray(np.maximum(self.maximum, other.maximum)),
        )

    @property
    def mean(self) -> NDArray[np.float64]:
        """NaN where nothing finite was seen."""
        pairs = zip(self.total.flat, self.count.flat, strict=True)
        return self._array([ratio(t, int(n) << UNIT) for t, n in pairs])

    @property
    def variance(self) -> NDArray[np.float64]:
        """Mean squared distance from the mean: (n sum v^2 - (sum v)^2) / n^2, in integers up to the division."""
        triples = list(zip(self.total.flat, self.squares.flat, self.count.flat, strict=True))
        spreads = [int(n) * q - t * t for t, q, n in triples]
        if any(n and spread < 0 for spread, (_, _, n) in zip(spreads, triples, strict=True)):
            # Cauchy and Schwarz forbid it: no numbers have such sums. Checked here and not when files are read, because
            # merging thousands of shards should not multiply anything.
            raise RefusalError("Sums of a survey do not fit its counts: the file was changed by hand; scan again.")
        return self._array([ratio(a, int(n) ** 2 << 2 * UNIT) for a, (_, _, n) in zip(spreads, triples, strict=True)])

    @property
    def std(self) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(self.variance))

    def _array(self, numbers: list[float]) -> NDArray[np.float64]:
        return np.array(numbers, dtype=np.float64).reshape(self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moments) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "count": exact.counts_to_json(self.count),
            "nonfinite": exact.counts_to_json(self.nonfinite),
            "total": [exact.to_text(n) for n in self.total.flat],
            "squares": [exact.to_text(n) for n in self.squares.flat],
            "min": exact.floats_to_json(self.minimum),
            "max": exact.floats_to_json(self.maximum),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], shape: Shape) -> Moments:
        return cls(
            count=exact.counts_from_json(data["count"], shape),
            nonfinite=exact.counts_from_json(data["nonfinite"], shape),
            total=integers([exact.from_text(t) for t in data["total"]], shape),
            squares=integers([exact.from_text(t) for t in data["squares"]], shape),
            minimum=exact.floats_from_json(data["min"], shape),
            maximum=exact.floats_from_json(data["max"], shape),
        )
