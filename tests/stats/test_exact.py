"""Sums without rounding: equal to rational arithmetic, for every float there is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.stats.exact import UNIT, exact_sums, from_text, ratio, to_text

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, max_size=20))
def test_sums_equal_rational_arithmetic(values: list[float]) -> None:
    (total,), (squares,) = exact_sums(np.array(values, dtype=np.float64).reshape(-1, 1))
    assert Fraction(total, 2**UNIT) == sum((Fraction(v) for v in values), Fraction(0))
    assert Fraction(squares, 2 ** (2 * UNIT)) == sum((Fraction(v) ** 2 for v in values), Fraction(0))


def test_extreme_floats_keep_every_bit() -> None:
    values = np.array([[5e-324], [-5e-324], [1.7976931348623157e308], [2.0**-1022], [1.0]])
    (total,), _ = exact_sums(values)
    assert Fraction(total, 2**UNIT) == Fraction(1.7976931348623157e308) + Fraction(2.0**-1022) + 1


@given(st.integers())
def test_text_round_trip(number: int) -> None:
    assert from_text(to_text(number)) == number


def test_text_is_short() -> None:
    assert to_text(3 << 1000) == "3p1000"
    assert to_text(-(3 << 1000)) == "-3p1000"
    assert to_text(0) == "0"


@pytest.mark.parametrize("text", ["1p99999999", "1p-3", "zz", "", 17, None, "f" * 10_000])
def test_damaged_text_is_an_error(text: object) -> None:
    with pytest.raises(ValueError):
        from_text(text)


def test_ratio_at_the_edges() -> None:
    assert np.isnan(ratio(0, 0))
    assert ratio(1 << 5000, 1) == np.inf
    assert ratio(-(1 << 5000), 1) == -np.inf
    assert ratio(1, 3) == 1 / 3
