"""Numbers as people read them: four figures, no trailing noise, the same in charts, page and terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

TINY = 1e-3  # below it decimals are mostly zeros, and powers of ten are read more easily


def numeral(value: float) -> str:
    """`0.4313`, `12.5`, `12,480`, `1.2e-5`; NaN and infinities are said in words."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    size = abs(value)
    if size != 0 and (size < TINY or size >= 999_950):
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{_short(mantissa)}e{int(exponent)}"
    if size >= 999.95:
        return f"{round(value):,}"
    return _short(f"{value:#.4g}")


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


def _short(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
