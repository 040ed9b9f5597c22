from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.stats.sketch import RELATIVE_ERROR, QuantileSketch

normal = st.one_of(st.floats(-1e9, 1e9), st.floats(1e-12, 1e-3), st.floats(1e-300, 1e300), st.just(0.0)).filter(
    lambda v: v == 0 or abs(v) > 1e-300
)


@given(st.lists(normal, min_size=1, max_size=50), st.floats(0, 1))
def test_relative_error_holds_for_every_quantile(values: list[float], share: float) -> None:
    true = sorted(values)[math.floor(share * (len(values) - 1) + 0.5)]
    found = float(QuantileSketch.of(np.array(values)).quantile(share))
    assert abs(found - true) <= RELATIVE_ERROR * abs(true)
    assert RELATIVE_ERROR < 0.01


def test_many_values_in_little_room() -> None:
    values = np.random.default_rng(0).uniform(0.1, 1.0, size=(20_000, 2))
    sketch = QuantileSketch.of(values)
    assert len(sketch.tally.codes) < 2 * 230
    np.testing.assert_allclose(sketch.quantile(0.5), np.quantile(values, 0.5, axis=0), rtol=0.01)


def test_signs_and_zero_keep_their_order() -> None:
    sketch = QuantileSketch.of(np.array([-4.0, -1.0, 0.0, 1.0, 4.0]))
    found = [float(sketch.quantile(q)) for q in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert found == sorted(found)
    assert found[2] == 0.0
    assert found[0] == -found[4]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0, 2.0], 0.5, 2.0),  # half-way goes up: the median of two is the larger
        ([1.0, 2.0], 0.4, 1.0),
        ([1.0, 2.0], 0.9, 2.0),
        ([1.0, 2.0, 4.0], 0.5, 2.0),
        ([1.0, 2.0, 4.0], 0.9, 4.0),  # rank 1.8
        ([1.0, 2.0, 4.0], 0.1, 1.0),
        ([1.0, 2.0, 4.0, 8.0], 0.9, 8.0),
        ([1.0, 2.0, 4.0, 8.0], 0.5, 4.0),
        ([5.0], 0.1, 5.0),
        ([5.0], 1.0, 5.0),
    ],
)
def test_few_values_are_read_at_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert float(QuantileSketch.of(np.array(values)).quantile(share)) == pytest.approx(expected, rel=RELATIVE_ERROR)


def test_nothing_and_nonsense() -> None:
    assert np.isnan(QuantileSketch.of(np.array([np.nan, np.inf])).quantile(0.5))
    assert np.isnan(QuantileSketch.empty((3,)).quantile(0.5)).all()
    with pytest.raises(ValueError, match="between 0 and 1"):
        QuantileSketch.empty().quantile(2.0)
