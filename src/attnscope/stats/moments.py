"""Count, mean, spread, minimum and maximum of many numbers, for a whole vector of heads at once.

Merging is exact (see `exact`): batches, shards and resumed runs give the same mean and variance to the last bit. NaN
and infinity are counted and ignored, so that one broken sequence cannot hide the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnscope.core.errors import RefusalError

# Sums of floats without rounding, so that adding is associative and shards merge to the same bits.
#
# Every finite float64 is a whole multiple of 2^-1074 (the smallest subnormal), and its square a whole multiple
# of 2^-2148. Counting in those units turns a sum of floats into a sum of Python integers: no rounding, no
# order, no cancellation. A mean or a variance is then one division of integers, which Python rounds correctly.
#
# The integers are long but mostly trailing zeros, which the text form omits: `"1a3fp1060"` is 0x1a3f * 2^1060 units.
#
# JSON has no infinity and no NaN, so those are written as the strings "inf", "-inf" and "nan". Arrays of shape ()
# become one value, others a list.

UNIT = 1074  # a value is counted in units of 2^-UNIT, a square in units of 2^-(2 UNIT)
_MANTISSA = 53
LONGEST = 2 * (UNIT + 1024) + 64  # bits of the longest possible sum of squares; a file that claims more is damaged


def float_to_json(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def floats_to_json(array: NDArray[np.float64]) -> Any:
    return _mapped(float_to_json, array.tolist())


def floats_from_json(data: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.asarray(_mapped(float, data), dtype=np.float64).reshape(shape)


def counts_to_json(array: NDArray[np.int64]) -> Any:
    """Write counts once if they are the same for all heads, as they nearly always are."""
    if array.size and (array == array.flat[0]).all():
        return int(array.flat[0])
    return array.tolist()


def whole_from_json(data: Any) -> NDArray[np.int64]:
    """Return whole numbers. Others are refused, because numpy would cut them off."""
    raw = np.asarray(data)
    if raw.dtype.kind not in "iu" and raw.size:
        raise ValueError("whole numbers are needed")
    return raw.astype(np.int64)


def counts_from_json(data: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    array = whole_from_json(data)
    if (array < 0).any():
        raise ValueError("a count is a whole number, and never negative")
    return np.full(shape, int(array)) if array.ndim == 0 else array.reshape(shape)


def _mapped(function: Any, data: Any) -> Any:
    return [_mapped(function, d) for d in data] if isinstance(data, list) else function(data)


def exact_sums(values: Float[np.ndarray, "batch cells"]) -> tuple[list[int], list[int]]:
    """Return sums over the batch of finite values and of their squares, in units of 2^-1074 and 2^-2148.

    v = m 2^(e-53) with |m| < 2^53 whole. With `low` the smallest e, sum v = 2^(low-53) sum m 2^(e-low): the big
    integers only span the exponents that occur, and are moved to the common unit once per cell.
    """
    if not len(values):
        return [0] * values.shape[1], [0] * values.shape[1]
    fraction, exponent = np.frexp(values)
    mantissa = np.ldexp(fraction, _MANTISSA).astype(np.int64)
    low = int(exponent.min())
    terms = mantissa.astype(object) << (exponent - low).astype(object)
    move = low - _MANTISSA + UNIT
    totals = [_shift(int(t), move) for t in terms.sum(axis=0)]
    squares = [_shift(int(s), 2 * move) for s in (terms * terms).sum(axis=0)]
    return totals, squares


def _shift(number: int, places: int) -> int:
    """Shift exactly: bits shifted out are zero, because every float is a multiple of the unit."""
    return number << places if places >= 0 else number >> -places


def ratio(numerator: int, denominator: int) -> float:
    """Return the correctly rounded quotient; infinity beyond float64, NaN for a denominator of 0."""
    if denominator == 0:
        return float("nan")
    try:
        return numerator / denominator
    except OverflowError:
        return float("inf") if numerator > 0 else float("-inf")


def integers(numbers: Sequence[int], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return Python integers as an array of this shape."""
    array = np.empty(len(numbers), dtype=object)
    array[:] = numbers
    return array.reshape(shape)


def to_text(number: int) -> str:
    """Return hexadecimal digits without trailing zeros; `p` counts the zeros in bits."""
    if number == 0:
        return "0"
    zeros = (number & -number).bit_length() - 1
    return f"{number >> zeros:x}p{zeros}"


def from_text(text: Any) -> int:
    if not isinstance(text, str):
        raise ValueError(f"an exact sum is a string, not {type(text).__name__}")
    digits, _, zeros = text.partition("p")
    places = int(zeros or 0)
    if not 0 <= places <= LONGEST or len(digits) > LONGEST:
        raise ValueError("an exact sum is longer than any float can make it")
    return int(digits, 16) << places


Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Moments:
    """Mergeable moments. All arrays have the shape `()` or `(heads,)`. If empty, minimum is inf and maximum -inf."""

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
        totals, squares = exact_sums(kept)
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
        """The mean of the finite values; NaN if there are none."""
        pairs = zip(self.total.flat, self.count.flat, strict=True)
        return self._array([ratio(t, int(n) << UNIT) for t, n in pairs])

    @property
    def variance(self) -> NDArray[np.float64]:
        """The mean squared distance from the mean, (n sum v^2 - (sum v)^2) / n^2, with integers until the division."""
        triples = list(zip(self.total.flat, self.squares.flat, self.count.flat, strict=True))
        spreads = [int(n) * q - t * t for t, q, n in triples]
        if any(n and spread < 0 for spread, (_, _, n) in zip(spreads, triples, strict=True)):
            # By Cauchy-Schwarz no numbers have such sums. This is checked here and not when files are read, because
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
            "count": counts_to_json(self.count),
            "nonfinite": counts_to_json(self.nonfinite),
            "total": [to_text(n) for n in self.total.flat],
            "squares": [to_text(n) for n in self.squares.flat],
            "min": floats_to_json(self.minimum),
            "max": floats_to_json(self.maximum),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], shape: Shape) -> Moments:
        return cls(
            count=counts_from_json(data["count"], shape),
            nonfinite=counts_from_json(data["nonfinite"], shape),
            total=integers([from_text(t) for t in data["total"]], shape),
            squares=integers([from_text(t) for t in data["squares"]], shape),
            minimum=floats_from_json(data["min"], shape),
            maximum=floats_from_json(data["max"], shape),
        )
