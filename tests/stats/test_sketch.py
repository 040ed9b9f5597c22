"""Quantile sketches and their histograms: error bounds, exact merges, edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.stats.sketch import RELATIVE_ERROR, Histogram, QuantileSketch
from tests.stats.samples import batches

normal = st.one_of(st.floats(-1e9, 1e9), st.floats(1e-12, 1e-3), st.floats(1e-300, 1e300), st.just(0.0)).filter(
    lambda v: v == 0 or abs(v) > 1e-300
)


@given(st.lists(normal, min_size=1, max_size=50), st.floats(0, 1))
def test_relative_error_holds_for_every_quantile(values: list[float], share: float) -> None:
    true = sorted(values)[math.floor(share * (len(values) - 1) + 0.5)]
    found = float(QuantileSketch.of(np.array(values)).quantile(share))
    assert abs(found - true) <= RELATIVE_ERROR * abs(true)
    assert RELATIVE_ERROR < 0.01


def test_many_values_need_few_buckets() -> None:
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
def test_quantiles_of_few_values_use_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert float(QuantileSketch.of(np.array(values)).quantile(share)) == pytest.approx(expected, rel=RELATIVE_ERROR)


def test_quantile_of_no_numbers_is_nan_and_bad_shares_are_refused() -> None:
    assert np.isnan(QuantileSketch.of(np.array([np.nan, np.inf])).quantile(0.5))
    assert np.isnan(QuantileSketch.empty((3,)).quantile(0.5)).all()
    with pytest.raises(ValueError, match="between 0 and 1"):
        QuantileSketch.empty().quantile(2.0)


def histograms(values: np.ndarray) -> list[Histogram]:
    sketch = QuantileSketch.of(values)
    return [sketch.histogram(place) for place in range(int(np.prod(values.shape[1:])))]


@given(batches())
def test_merging_histograms_is_the_histogram_of_the_merge(values: list[np.ndarray]) -> None:
    a, b, c = (histograms(v) for v in values)
    whole = histograms(np.concatenate(values))
    for place, all_together in enumerate(whole):
        assert a[place].merge(b[place]).merge(c[place]) == all_together
        assert c[place].merge(b[place].merge(a[place])) == all_together
        assert all_together.merge(QuantileSketch.empty().histogram()) == all_together


@given(batches(1))
def test_every_number_is_in_its_bin(values: list[np.ndarray]) -> None:
    flat = values[0].reshape(len(values[0]), int(np.prod(values[0].shape[1:])))
    for column, made in zip(flat.T, histograms(values[0]), strict=True):
        seen = column[np.isfinite(column)]
        assert made.counts.sum() == len(seen)
        assert len(made.edges) == (len(made.counts) + 1 if len(seen) else 0)
        assert (np.diff(made.edges) > 0).all()
        for (low, high), count in made.bins.items():
            # Bins are open at the end that is farther from zero; the one around zero is open at both.
            inside = (seen >= low) & (seen < high) if low > 0 else (seen > low) & (seen <= high)
            inside = (seen > low) & (seen < high) if low < 0 < high else inside
            assert inside.sum() == count


@given(st.floats(1e-300, 1e300), st.sampled_from([-1.0, 1.0]))
def test_bins_are_narrow(size: float, sign: float) -> None:
    low, high = np.abs(QuantileSketch.of(np.array([sign * size])).histogram().edges)
    assert abs(high - low) <= min(low, high) / 64


def test_a_stretch_without_numbers_is_one_empty_bin() -> None:
    made = QuantileSketch.of(np.array([1.0, 1.0, 3.0, -2.0])).histogram()
    assert made.counts.tolist() == [1, 0, 2, 0, 1]
    assert made.edges.tolist() == [-2.03125, -2.0, 1.0, 1.015625, 3.0, 3.03125]


def test_bins_of_another_grid_do_not_merge() -> None:
    mine = Histogram.of_bins({(0.0, 1.0): 2})
    with pytest.raises(ValueError, match="overlap"):
        mine.merge(Histogram.of_bins({(0.5, 1.5): 1}))
    assert mine != "a word"
