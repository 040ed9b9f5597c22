"""Numbers as people read them, the same in sentences, charts, pages and terminals: a few figures, no trailing noise."""

from __future__ import annotations

import math

TINY = 1e-3  # below it decimals are mostly zeros, and powers of ten are read more easily


def numeral(value: float, figures: int = 4) -> str:
    """`0.4313`, `12.5`, `12,480`, `1.2e-5`; NaN and infinities are said in words. Sentences take three figures."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinity"
    size = abs(value)
    if size != 0 and (size < TINY or size >= 999_950):
        mantissa, exponent = f"{value:.{figures - 1}e}".split("e")
        return f"{_short(mantissa)}e{int(exponent)}"
    if size >= 999.95:
        return f"{round(value):,}"
    return _short(f"{value:#.{figures}g}")


def _short(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
