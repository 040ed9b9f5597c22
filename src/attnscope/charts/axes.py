"""Axes that label their numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from attnscope.core.numerals import TINY


def tick_labels(values: Iterable[float]) -> dict[str, Any]:
    """Options of a linear axis: labels as powers of ten where all it shows is tiny, else what the axis itself gives."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0 or largest >= TINY:
        return {}
    return {"labelExpr": "datum.value == 0 ? '0' : format(datum.value, '.3~e')"}


def power_axis(low: float, high: float) -> dict[str, Any]:
    """Options of a logarithmic axis: powers of ten, eight at most, with labels such as 0.01 and 1e-12."""
    exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if len(exponents) < 2:  # less than two powers of ten: an axis without a tick would say nothing
        return {"tickCount": 4, "format": "~g"}
    step = max(1, math.ceil(len(exponents) / 8))
    label = "datum.value >= 0.001 && datum.value < 10000 ? format(datum.value, '~g') : format(datum.value, '.0e')"
    return {"values": [10.0**e for e in exponents if e % step == 0], "labelExpr": label}
