"""Numbers as people read them: four figures, no trailing noise, the same in charts, page and terminal."""

from __future__ import annotations

import math


def numeral(value: float) -> str:
    """`0.4313`, `12.5`, `12,480`, `1.2e-5`; a number that is none is called so."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 999_950):
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{_short(mantissa)}e{int(exponent)}"
    if size >= 999.95:
        return f"{round(value):,}"
    return _short(f"{value:#.4g}")


def _short(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
