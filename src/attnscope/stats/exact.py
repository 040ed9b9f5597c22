"""Sums of floats without rounding, so that adding is associative and shards merge to the same bits.

Every finite float64 is a whole multiple of 2^-1074 (the smallest subnormal), and its square a whole multiple
of 2^-2148. Counting in those units turns a sum of floats into a sum of Python integers: no rounding, no
order, no cancellation. A mean or a variance is then one division of integers, which Python rounds correctly.

The integers are long but mostly trailing zeros, which the text form omits: `"1a3fp1060"` is 0x1a3f * 2^1060 units.

JSON has no infinity and no NaN, so those are written as the strings "inf", "-inf" and "nan". Arrays of shape () become
one value, others a list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

UNIT = 1074  # a value is counted in units of 2^-UNIT, a square in units of 2^-(2 UNIT)
_MANTISSA = 53
_LONGEST = 2 * (UNIT + 1024) + 64  # bits of the longest possible sum of squares; a file that claims more is damaged


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


def counts_from_json(data: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    raw = np.asarray(data)
    array = raw.astype(np.int64) if raw.dtype.kind in "iu" or not raw.size else None  # other kinds are not cast
    if array is None or (array < 0).any():
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
    if not 0 <= places <= _LONGEST or len(digits) > _LONGEST:
        raise ValueError("an exact sum is longer than any float can make it")
    return int(digits, 16) << places
