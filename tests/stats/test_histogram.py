"""The sketch as a histogram: every number is in its bin, and merging histograms is the histogram of the merge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.stats.sketch import Histogram, QuantileSketch
from tests.stats.samples import batches


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
