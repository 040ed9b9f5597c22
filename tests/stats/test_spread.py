"""Error bars of many means, and correlations, against formulas and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from attnscope.stats.bootstrap import bootstrap_mean
from attnscope.stats.spread import correlations, ranks, spread


def test_means_errors_and_intervals() -> None:
    values = np.random.default_rng(1).normal([0.0, 1.0, 5.0], 1.0, size=(40, 3))
    values = np.column_stack([values, np.full(40, 2.0)])
    found = spread(values)
    assert np.allclose(found.mean, values.mean(0))
    assert np.allclose(found.error, values.std(0, ddof=1) / 40**0.5)
    for column in range(4):  # the same draws, one column at a time
        mean, low, high = bootstrap_mean(values[:, column].tolist())
        assert (found.mean[column], found.low[column], found.high[column]) == pytest.approx((mean, low, high))
    assert found.error[3] == found.band[3] == 0
    assert np.all(found.band[:3] > 1.96 * found.error[:3])  # three at once need more than one alone
    assert np.all(found.band[:3] < 3.5 * found.error[:3])


def test_the_band_holds_all_numbers_together() -> None:
    """Of 40 tables whose true means are all zero, 5% are expected to have any of 30 outside; of single intervals most
    have. Twelve of 40 at 5% has a chance of 1e-6."""
    rng = np.random.default_rng(0)
    band = alone = 0
    for _ in range(40):
        found = spread(rng.normal(size=(60, 30)))
        band += bool(np.any(np.abs(found.mean) > found.band))
        alone += bool(np.any((found.low > 0) | (found.high < 0)))
    assert band < 12
    assert alone > 20


def test_one_row_knows_nothing_of_its_error() -> None:
    found = spread(np.array([[1.0, 2.0]]))
    assert list(found.mean) == [1.0, 2.0]
    assert np.all(np.isinf(found.error))
    assert np.all(np.isinf(found.band))
    pearson, _ = correlations(np.array([[1.0, 2.0, 4.0]]), np.array([[1.0, 2.0, 3.0]]))
    assert pearson is not None
    assert (pearson.low, pearson.high) == (-1, 1)


def test_correlations_are_those_of_scipy() -> None:
    rng = np.random.default_rng(3)
    one = rng.normal(size=(9, 20)).round(1)
    other = one + rng.normal(size=(9, 20)).round(1)
    pearson, spearman = correlations(one, other)
    assert pearson is not None
    assert spearman is not None
    assert pearson.value == pytest.approx(pearsonr(one.mean(0), other.mean(0)).statistic)
    assert spearman.value == pytest.approx(spearmanr(one.mean(0), other.mean(0)).statistic)
    assert pearson.low < pearson.value < pearson.high
    assert ranks(np.array([[3.0, 1.0, 3.0, 2.0]])).tolist() == [[3.5, 1.0, 3.5, 2.0]]
    assert correlations(one, np.zeros((9, 20))) == (None, None)
    same, _ = correlations(one, 2 * one)
    assert same is not None
    assert same.low == pytest.approx(1)
