"""Error bars of many means, and correlations, against formulas and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from attnscope.stats.intervals import bootstrap_mean
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
    assert np.all(found.band[:3] < 4 * found.error[:3])


def test_the_band_holds_all_numbers_together() -> None:
    """All of 144 numbers are zero: in 5 of 100 tables some number is called different from zero. Of 40 tables that is
    2 +- 1.4, and 6 is three of these above. Single intervals are wrong in all tables."""
    rng = np.random.default_rng(0)
    wrong = 0
    for seed in range(40):
        found = spread(rng.normal(size=(16, 144)), seed)
        wrong += bool(np.any(np.abs(found.mean) > found.band))
    assert wrong <= 6
    assert np.any((found.low > 0) | (found.high < 0))


def test_with_too_few_prompts_no_sign_is_known() -> None:
    far = 10 + np.random.default_rng(0).normal(size=(16, 3))
    assert np.all(np.isinf(spread(far[:15]).band))
    assert np.all(spread(far).band < spread(far).mean)


def test_one_row_has_infinite_error() -> None:
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


def test_intervals_of_correlations_have_their_stated_coverage() -> None:
    """True means are fixed and prompts are drawn, 150 times: the correlation that 8 prompts give on average is inside
    in 95 of 100 or more (143 of 150 +- 2.7, and 130 is five of these below), and the estimate always is. Noise makes it
    smaller than that of the true means, by the root of both reliabilities, to a few hundredths."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=40)
    b = 0.8 * a + 0.6 * rng.normal(size=40)
    measured = []
    for seed in range(150):
        pearson, _ = correlations(a + 2 * rng.normal(size=(8, 40)), b + 2 * rng.normal(size=(8, 40)), seed)
        assert pearson is not None
        assert pearson.low < pearson.value < pearson.high
        measured.append(pearson)
    average = float(np.mean([correlation.value for correlation in measured]))
    assert sum(correlation.low <= average <= correlation.high for correlation in measured) >= 130
    true = float(np.corrcoef(a, b)[0, 1])
    limits = [correlation.most for correlation in measured if correlation.most is not None]
    assert len(limits) == 150
    assert average < true - 0.1
    assert average == pytest.approx(true * float(np.mean(limits)), abs=0.05)


def test_reliability_is_what_other_prompts_would_repeat() -> None:
    """Of true variance 1 and noise of variance 4 over 16 prompts it is 1 / (1 + 4/16) = 0.8."""
    rng = np.random.default_rng(6)
    true = rng.normal(size=4000)
    one, other = (true + 2 * rng.normal(size=(16, 4000)) for _ in range(2))
    pearson, spearman = correlations(one, other)
    assert pearson is not None
    assert spearman is not None
    assert pearson.reliable == pytest.approx((0.8, 0.8), abs=0.03)
    few, _ = correlations(rng.normal(size=(3, 5)), rng.normal(size=(3, 5)))
    assert few is not None
    assert few.reliable is None
