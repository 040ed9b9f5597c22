from __future__ import annotations

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from attnscope.stats.moments import Moments


def test_by_hand() -> None:
    moments = Moments.of(np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]]))
    assert moments.count.tolist() == [3, 3]
    assert moments.mean.tolist() == [3.0, 0.0]
    assert moments.variance.tolist() == [14 / 3, 0.0]
    assert moments.std.tolist() == [np.sqrt(14 / 3), 0.0]
    assert moments.minimum.tolist() == [1.0, 0.0]
    assert moments.maximum.tolist() == [6.0, 0.0]


def test_one_number_has_shape_nothing() -> None:
    moments = Moments.of(np.array([2.0, 4.0]))
    assert moments.shape == ()
    assert float(moments.mean) == 3.0
    assert float(moments.variance) == 1.0


def test_broken_values_are_counted_and_left_out() -> None:
    moments = Moments.of(np.array([1.0, np.nan, np.inf, -np.inf, 3.0]))
    assert int(moments.count) == 2
    assert int(moments.nonfinite) == 3
    assert float(moments.mean) == 2.0
    assert float(moments.maximum) == 3.0


def test_nothing_has_no_mean() -> None:
    empty = Moments.empty((2,))
    assert np.isnan(empty.mean).all()
    assert np.isnan(empty.variance).all()
    assert empty.minimum.tolist() == [np.inf, np.inf]
    assert empty.maximum.tolist() == [-np.inf, -np.inf]


def test_no_cancellation_where_floats_lose_everything() -> None:
    values = np.array([1e16, 1.0, -1e16])
    assert float(Moments.of(values).mean) == 1 / 3
    assert float(Moments.of(1e9 + np.array([0.0, 1.0, 2.0])).variance) == 2 / 3


def test_float32_is_taken_as_it_is() -> None:
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
