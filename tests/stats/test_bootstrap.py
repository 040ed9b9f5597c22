"""Intervals have their stated coverage: for one mean, for means by document, and for all differences together."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from attnscope.stats.intervals import (
    DRAWS,
    ENOUGH,
    bootstrap_mean,
    fewest,
    share_interval,
    simultaneous_differences,
    student,
)
from bench.coverage import POOLS, called_sure, coverage

LOWEST = 0.93
SAMPLES = 1000
ERROR = 3 * (0.05 * 0.95 / SAMPLES) ** 0.5  # three standard errors of a share of 95% in 1000 samples: 2.1%


@pytest.mark.parametrize("n", [ENOUGH, 32])
@pytest.mark.parametrize("name", POOLS)
def test_an_interval_holds_the_mean(name: str, n: int) -> None:
    """On skewed, long-tailed and real numbers the mean is inside in 93 of 100 samples or more."""
    assert coverage(POOLS[name], n, SAMPLES) >= LOWEST - ERROR


@pytest.mark.parametrize("n", [6, 8, 16])
@pytest.mark.parametrize("name", ["normal", "exponential", "Student, 3 degrees", "heads of SmolLM2"])
def test_an_interval_of_few_numbers_holds_unless_a_rare_one_decides(name: str, n: int) -> None:
    assert coverage(POOLS[name], n, SAMPLES) >= LOWEST - ERROR


@pytest.mark.parametrize("n", [8, 24])
def test_an_interval_by_document_holds_the_mean(n: int) -> None:
    """16 texts of 8 documents, and 48 of 24: half of the variance is the document's."""
    assert coverage(POOLS["normal"], n, SAMPLES, alike=2) >= LOWEST - ERROR
    assert coverage(POOLS["exponential"], n, SAMPLES, alike=2) >= LOWEST - ERROR


@pytest.mark.parametrize("n", [8, 16, 32])
@pytest.mark.parametrize("name", ["exponential", "lognormal"])
def test_of_skewed_heads_that_are_zero_none_is_sure(name: str, n: int) -> None:
    """5 of 100 experiments are allowed to err: 3 of 60, with a standard deviation of 1.7, so 8 is three of these above.
    Random signs erred in 47 to 99 of 100."""
    assert called_sure(POOLS[name], n, 60) <= 8 / 60


@pytest.mark.thorough
@pytest.mark.parametrize("n", [16, 32])
@pytest.mark.parametrize("numbers", [3, 36])
@pytest.mark.parametrize("name", POOLS)
def test_of_few_and_many_numbers_that_are_zero_none_is_sure(name: str, numbers: int, n: int) -> None:
    """Of 400 experiments 20 may err, with a standard deviation of 4.4: 34 is three of these above."""
    assert called_sure(POOLS[name], n, 400, numbers) <= 34 / 400


def test_an_interval_by_hand() -> None:
    """The draws of `_drawn`, one at a time and text by text."""
    values, documents = np.random.default_rng(8).exponential(size=12), np.repeat(np.arange(6), [1, 2, 3, 1, 4, 1])
    weights = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), size=DRAWS)

    def mean_and_error(chosen: list[int]) -> tuple[float, float]:
        texts = [values[documents == k] for k in chosen]
        mean = float(np.concatenate(texts).mean())
        rest = [float((text - mean).sum()) for text in texts]
        return mean, (6 / 5 * sum(r * r for r in rest)) ** 0.5 / sum(map(len, texts))

    mean, error = mean_and_error(list(range(6)))
    t = []
    for row in weights:
        drawn, own = mean_and_error([k for k in range(6) for _ in range(row[k])])
        t.append((drawn - mean) / own if own > 1e-9 else np.copysign(np.inf, drawn - mean))
    ends = np.quantile(t, 0.98, method="higher"), -np.quantile(t, 0.02, method="lower")
    reach = student(5, 0.96)
    wanted = (mean, mean - max(ends[0], reach) * error, mean + max(ends[1], reach) * error)
    assert bootstrap_mean(values.tolist(), groups=documents.tolist()) == pytest.approx(wanted)


def test_ends_of_an_interval() -> None:
    assert bootstrap_mean([3.0]) == (3.0, -np.inf, np.inf)
    assert bootstrap_mean([2.0] * 5) == (2.0, 2.0, 2.0)
    assert bootstrap_mean([1.0, 2.0, 6.0, 3.0]) == bootstrap_mean([1.0, 2.0, 6.0, 3.0])
    skewed = np.random.default_rng(0).exponential(size=30)
    mean, low, high = bootstrap_mean(skewed.tolist())
    assert high - mean > mean - low  # the long tail may hide more


def test_the_interval_of_a_share_is_exact() -> None:
    """Of 16 cases with chance 0.7, the chances of all counts whose interval holds 0.7 add up to 95% or more."""
    held = [k for k in range(17) if share_interval(k, 16)[1] <= 0.7 <= share_interval(k, 16)[2]]
    assert sum(comb(16, k) * 0.7**k * 0.3 ** (16 - k) for k in held) >= 0.95
    assert share_interval(16, 16)[1:] == pytest.approx((0.025 ** (1 / 16), 1.0))
    assert share_interval(0, 4)[1] == 0


def test_texts_of_one_document_are_drawn_together() -> None:
    """Four equal texts of each of 12 documents tell no more than 12 texts: the interval is theirs, and more
    than twice as wide as that of 48 texts that stand alone (the square root of 4, times Student's 2.33 / 2.11)."""
    values = np.random.default_rng(1).normal(0, 1, 12)
    copied, documents = np.repeat(values, 4).tolist(), np.repeat(np.arange(12), 4).tolist()
    together = bootstrap_mean(copied, groups=documents)
    assert together == pytest.approx(bootstrap_mean(values.tolist()))
    _, low, high = bootstrap_mean(copied)
    assert together[2] - together[1] > 2 * (high - low)


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, 20) + rng.normal(0, 0.2, (4, 20))
    values[0] += 1
    apart, off = simultaneous_differences(values.tolist())
    assert (np.abs(apart) > off)[0].tolist() == [False, True, True, True]
    assert not (np.abs(apart) > off)[1:, 1:].any()
    assert apart[0, 1] == pytest.approx(float((values[0] - values[1]).mean()))
    assert np.allclose(apart, -apart.T)


def test_few_texts_prove_nothing_and_equal_rows_do_not_differ() -> None:
    few = [[float(n) for n in range(15)], [100.0 + n % 3 for n in range(15)], [0.0] * 15]
    assert np.isinf(simultaneous_differences(few)[1][np.triu_indices(3, 1)]).all()
    assert (fewest(1), fewest(2), fewest(3), fewest(144)) == (24, 24, 16, 16)
    row = [float(n) for n in range(16)]
    apart, off = simultaneous_differences([row, row, [n + 1 for n in row]])
    assert (np.abs(apart) > off).tolist() == [[False, False, True], [False, False, True], [True, True, False]]
