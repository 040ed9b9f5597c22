"""Arrays as plain JSON and back, exactly. Arrays of shape () become one value, others a list.

JSON has no infinity and no NaN, so those travel as the strings "inf", "-inf" and "nan".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def float_to_json(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def floats_to_json(array: NDArray[np.float64]) -> Any:
    return _mapped(float_to_json, array.tolist())


def floats_from_json(data: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.asarray(_mapped(float, data), dtype=np.float64).reshape(shape)


def counts_to_json(array: NDArray[np.int64]) -> Any:
    """Counts are the same for all heads nearly always: then they are written once."""
    if array.size and (array == array.flat[0]).all():
        return int(array.flat[0])
    return array.tolist()


def counts_from_json(data: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    given = np.asarray(data)
    if given.size and given.dtype.kind not in "iu":  # asked before the cast, which makes a number of anything
        raise ValueError("a count is a whole number, and never negative")
    array = given.astype(np.int64)
    if (array < 0).any():
        raise ValueError("a count is a whole number, and never negative")
    return np.full(shape, int(array)) if array.ndim == 0 else array.reshape(shape)


def _mapped(function: Any, data: Any) -> Any:
    return [_mapped(function, d) for d in data] if isinstance(data, list) else function(data)
