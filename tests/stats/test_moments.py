"""Moments and exact sums: against fractions, in any order, through JSON."""

from __future__ import annotations

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from attnscope.stats.moments import UNIT, Moments, exact_sums, from_text, ratio, to_text


def test_by_hand() -> None:
    moments = Moments.of(np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]]))
    assert moments.count.tolist() == [3, 3]
    assert moments.mean.tolist() == [3.0, 0.0]
    assert moments.variance.tolist() == [14 / 3, 0.0]
    assert moments.std.tolist() == [np.sqrt(14 / 3), 0.0]
    assert moments.minimum.tolist() == [1.0, 0.0]
    assert moments.maximum.tolist() == [6.0, 0.0]


def test_moments_of_scalars_have_shape_zero() -> None:
    moments = Moments.of(np.array([2.0, 4.0]))
    assert moments.shape == ()
    assert float(moments.mean) == 3.0
    assert float(moments.variance) == 1.0


def test_nan_and_infinity_are_counted_and_ignored() -> None:
    moments = Moments.of(np.array([1.0, np.nan, np.inf, -np.inf, 3.0]))
    assert int(moments.count) == 2
    assert int(moments.nonfinite) == 3
    assert float(moments.mean) == 2.0
    assert float(moments.maximum) == 3.0


def test_mean_of_no_values_is_nan() -> None:
    empty = Moments.empty((2,))
    assert np.isnan(empty.mean).all()
    assert np.isnan(empty.variance).all()
    assert empty.minimum.tolist() == [np.inf, np.inf]
    assert empty.maximum.tolist() == [-np.inf, -np.inf]


def test_no_cancellation_where_floats_lose_everything() -> None:
    values = np.array([1e16, 1.0, -1e16])
    assert float(Moments.of(values).mean) == 1 / 3
    assert float(Moments.of(1e9 + np.array([0.0, 1.0, 2.0])).variance) == 2 / 3


def test_float32_values_are_not_rounded_again() -> None:
    assert float(Moments.of(np.array([0.1], dtype=np.float32)).mean) == float(np.float32(0.1))


def test_variance_beyond_float64_is_infinite_not_an_error() -> None:
    assert float(Moments.of(np.array([1e308, -1e308])).variance) == np.inf


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=30))
def test_mean_and_variance_are_correctly_rounded(values: list[float]) -> None:
    moments = Moments.of(np.array(values))
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    assert float(moments.mean) == float(mean)
    assert float(moments.variance) == float(sum((v - mean) ** 2 for v in exact) / len(exact))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_agrees_with_the_standard_library(values: list[float]) -> None:
    assume(len(set(values)) > 1)
    moments = Moments.of(np.array(values))
    assert float(moments.mean) == statistics.mean(values)
    assert float(moments.variance) == pytest.approx(statistics.pvariance(values), rel=1e-12)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, max_size=20))
def test_sums_equal_rational_arithmetic(values: list[float]) -> None:
    (total,), (squares,) = exact_sums(np.array(values, dtype=np.float64).reshape(-1, 1))
    assert Fraction(total, 2**UNIT) == sum((Fraction(v) for v in values), Fraction(0))
    assert Fraction(squares, 2 ** (2 * UNIT)) == sum((Fraction(v) ** 2 for v in values), Fraction(0))


def test_extreme_floats_are_summed_exactly() -> None:
    values = np.array([[5e-324], [-5e-324], [1.7976931348623157e308], [2.0**-1022], [1.0]])
    (total,), _ = exact_sums(values)
    assert Fraction(total, 2**UNIT) == Fraction(1.7976931348623157e308) + Fraction(2.0**-1022) + 1


@given(st.integers())
def test_text_round_trip(number: int) -> None:
    assert from_text(to_text(number)) == number


def test_text_omits_trailing_zeros() -> None:
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
