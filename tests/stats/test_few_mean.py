"""Intervals of few, skewed numbers hold what they say, by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnscope.stats.intervals import few_mean, single_means, unpaired_difference

POOL, SAMPLES = 20_000, 1_500


def pool(name: str) -> np.ndarray:
    random = np.random.default_rng(0)
    made = {
        "normal": random.standard_normal(POOL),
        "exponential": random.exponential(size=POOL),
        "lognormal": random.lognormal(0.0, 1.0, POOL),
        "gamma": random.gamma(0.5, size=POOL),
        "heavy": random.standard_t(3, POOL),
    }
    return made[name]


@pytest.mark.parametrize("windows", [8, 16])
@pytest.mark.parametrize("name", ["normal", "exponential", "lognormal", "gamma", "heavy"])
def test_few_skewed_numbers_are_covered(name: str, windows: int) -> None:
    """All samples are columns of one call, with the share of draws that `few_mean` takes below 24 windows."""
    numbers = pool(name)
    drawn = np.random.default_rng(1).choice(numbers, (windows, SAMPLES))
    _, low, high = single_means(drawn, np.ones(windows), inner=0.99)
    held = float(((low <= numbers.mean()) & (numbers.mean() <= high)).mean())
    assert held >= 0.94  # 0.95 less two standard errors of 1,500 samples
    alone = few_mean(drawn[:, 0].tolist(), [1.0] * windows)
    assert (alone.low, alone.high) == pytest.approx((low[0], high[0]))


@pytest.mark.parametrize("windows", [2, 3, 4])
def test_a_handful_of_numbers_is_covered(windows: int) -> None:
    numbers = pool("exponential")
    drawn = np.random.default_rng(2).choice(numbers, (SAMPLES, windows))
    found = [few_mean(row.tolist(), [1.0] * windows) for row in drawn]
    assert sum(each.low <= numbers.mean() <= each.high for each in found) / SAMPLES >= 0.94


@pytest.mark.parametrize("windows", [3, 8, 16])
def test_differences_of_separate_samples_are_covered(windows: int) -> None:
    numbers = pool("lognormal")
    drawn = np.random.default_rng(3).choice(numbers, (SAMPLES, 2, windows))
    sizes = [1.0] * windows
    found = [unpaired_difference((a.tolist(), sizes), (b.tolist(), sizes)) for a, b in drawn]
    assert sum(each.low <= 0 <= each.high for each in found) / SAMPLES >= 0.95


def test_the_mean_is_weighted_by_sizes() -> None:
    assert few_mean([1.0, 6.0], [1.0, 3.0]).mean == pytest.approx(7 / 4)
    equal = few_mean([0.5] * 8, [1.0] * 8)
    assert (equal.mean, equal.low, equal.high) == (0.5, 0.5, 0.5)
    assert not few_mean([0.0] * 8, [1.0] * 8).sure


def test_one_window_knows_nothing() -> None:
    alone = few_mean([3.0], [1.0])
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    assert not alone.sure
    assert not unpaired_difference(([1.0], [1.0]), ([2.0, 3.0], [1.0, 1.0])).sure
