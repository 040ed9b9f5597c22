"""The theorem's width with exact tails: the rate against its definition, the tail against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnscope.constructions.random_projection import Split, success_rate, theorem_for
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.generate import union_of_permutations, window
from attnscope.heads.solvers.projection import target
from attnscope.heads.solvers.theorem import exact_tail_width, rate


@pytest.mark.parametrize(("r", "t"), [(0.0, 0.1), (0.5, 0.2), (-0.9, 0.3), (0.99, 0.05), (1.0, 0.2), (-1.0, 0.5)])
def test_the_rate_is_the_supremum(r: float, t: float) -> None:
    """A maximum over steps of s that are 5e-5 wide lies below by at most half the curvature times their square, 1e-9
    times some hundreds."""
    s = np.arange(1, 400_000) * 5e-5
    inside = 1 - 2 * r * s - (1 - r * r) * s * s
    allowed = np.cumprod(inside > 0).astype(bool)
    best = (s * (r + t) + 0.5 * np.log(np.where(allowed, inside, 1.0)))[allowed].max()
    assert float(rate(np.array(r), np.array(t))) == pytest.approx(best, abs=1e-6)


def test_impossible_deviations_have_an_infinite_rate() -> None:
    assert np.isinf(rate(np.array(-1.0), np.array(1.5)))


@pytest.mark.parametrize("r", [-0.7, 0.0, 0.6])
def test_the_bound_holds_and_is_near(r: float) -> None:
    """200,000 means of 40 products: the share beyond r + t is below exp(-40 I), and not by more than a factor 12 (the
    factor that Chernoff's bound always loses, about sqrt(4 pi 40 I))."""
    rng = np.random.default_rng(0)
    first, other = rng.standard_normal((2, 200_000, 40))
    means = (first * (r * first + math.sqrt(1 - r * r) * other)).mean(axis=1)
    for t in (0.2, 0.4):
        share, bound = (means >= r + t).mean(), math.exp(-40 * float(rate(np.array(r), np.array(t))))
        assert bound / 12 < share < bound


@pytest.mark.parametrize("pattern", [union_of_permutations(64, 2, 0), window(48, 4)], ids=lambda p: p.name)
def test_exact_tail_width_is_narrower_than_the_theorem_and_half_of_draws_succeed(pattern) -> None:
    accuracy = Accuracy()
    split = Split(target(pattern, accuracy))
    width = exact_tail_width(*split.project(np.eye(split.rank)), math.log1p(accuracy.ratio_error) / 2)
    assert 5 * width < theorem_for(pattern, accuracy).width
    # at a success rate of exactly 1/2, ten draws would have 2 or fewer successes with probability .055
    assert success_rate(pattern, width, accuracy, 10, np.random.default_rng(1)) >= 0.3
