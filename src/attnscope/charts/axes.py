"""Axes that label their numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from attnscope.core.numerals import TINY

FEW_DECADES = 2.5  # up to these, 1, 2 and 5 of every power of ten have room on an axis
MOST_TICKS = 8


def tick_labels(values: Iterable[float]) -> dict[str, Any]:
    """Options of a linear axis: labels as powers of ten where all it shows is tiny, else what the axis itself gives."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0 or largest >= TINY:
        return {}
    return {"labelExpr": "datum.value == 0 ? '0' : format(datum.value, '.3~e')"}


def power_axis(low: float, high: float) -> dict[str, Any]:
    """Options of a logarithmic axis: 1, 0.5, 0.2, 0.1 over a few powers of ten, over many of them the powers, eight at
    most; with labels such as 0.01 and 1e-12."""
    exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if math.log10(high / low) <= FEW_DECADES:
        values = [m * 10.0**e for e in range(exponents.start - 1, exponents.stop) for m in (1, 2, 5)]
        values = [float(f"{v:.1g}") for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(values) < 2:  # a small part of one power of ten
            return {"tickCount": 4, "format": "~g"}
    else:
        step = max(1, math.ceil(len(exponents) / MOST_TICKS))
        values = [10.0**e for e in exponents if e % step == 0]
    label = "datum.value >= 0.001 && datum.value < 10000 ? format(datum.value, '~g') : format(datum.value, '.0e')"
    return {"values": values, "labelExpr": label}


def round_below(value: float, decades: float) -> float:
    """Where a logarithmic axis begins: the power of ten at or below, or 1, 2 or 5 times it where decades are few."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(m * power for m in ((1, 2, 5) if decades <= FEW_DECADES else (1,)) if m * power <= value * (1 + 1e-9))
