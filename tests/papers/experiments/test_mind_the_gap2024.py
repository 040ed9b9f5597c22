"""`mind_the_gap2024`, small enough to run in every test; derived laws, and norms against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.mind_the_gap2024 import mind_the_gap2024
from attnscope.papers.trials.random_markov import (
    SCALE,
    attended,
    excess,
    gradient_norm,
    gradients_in_width,
    kept_rank,
    normal,
    softmax_excess,
    stacked,
)

TINY = replace(mind_the_gap2024.presets["quick"], sizes=(8, 64), draws_times_tokens=64)
NOT_RUN = {"collapse_of_1024_tokens_in_numbers", "without_mean_rank_of_1024_tokens_in_numbers"}  # no such size


def test_laws_stand_beside_every_measured_curve() -> None:
    found = mind_the_gap2024.run(TINY, (0,), UnsavedSession())
    for figure in found.figures[:2]:
        for dashed in (False, True):
            assert {row.x for row in figure.rows if row.dashed is dashed} == set(TINY.sizes)
    assert "value weights" in found.remarks[1]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_excess_is_the_stable_rank_of_the_gram_matrix_less_one() -> None:
    stream = normal(6, 9, rng())
    gram = stream @ stream.mT
    slow = gram.square().sum() / torch.linalg.matrix_norm(gram, 2) ** 2 - 1
    assert excess(stream) == pytest.approx(float(slow), rel=1e-12)
    assert excess(torch.eye(5, dtype=torch.float64)) == pytest.approx(4.0)


def test_removing_the_mean_subtracts_j() -> None:
    logits, stream = normal(7, 7, rng()), normal(7, 7, rng(1))
    pattern, apart = attended(logits, stream)
    torch.testing.assert_close(pattern, (SCALE * logits).softmax(-1))
    torch.testing.assert_close(apart, pattern @ stream - stream.mean(0, keepdim=True))


def test_the_gradient_of_a_product_has_the_norm_of_a_kronecker_product() -> None:
    before, weight, after = normal(3, 4, rng()), normal(4, 4, rng(1)), normal(4, 4, rng(2))

    def output(inner: Tensor) -> Tensor:
        return before @ inner @ after

    slow = torch.autograd.functional.jacobian(output, weight).norm()
    assert gradient_norm(before, after) == pytest.approx(float(slow), rel=1e-12)


@pytest.mark.parametrize(("layer", "edge"), [(1, 27 / 4), (2, 3125 / 256)])
def test_kept_rank_follows_its_law(layer: int, edge: float) -> None:
    """Fuss-Catalan numbers: the square of the largest of k factors is (k+1)^(k+1)/k^k, the mean fourth power k + 1."""
    assert kept_rank(1000, layer) == pytest.approx(1000 * (2 * layer + 1) / edge**2)


def test_gradients_in_a_fixed_width_follow_their_law() -> None:
    """sqrt(width) times 1 with softmax, and times n^-1 with A - J; 8 draws of 64 coordinates: sqrt(1/512) = .04, 4 of
    it, and what is of order 1/n at n = 48."""
    for tokens in (48, 192):
        drawn = [gradients_in_width(tokens, 64, 3, rng(seed)) for seed in range(8)]
        for name, law in (("softmax", 1.0), ("A - J", 1 / tokens)):
            mean = sum(one[name] for one in drawn) / len(drawn)
            assert mean == pytest.approx(64**0.5 * law, rel=0.2)


def test_stacks_follow_their_laws() -> None:
    """Means over 12 draws at n = 96; the spread of one draw is about a factor 1.5 (layer 1) to 2.5 (layer 3)."""
    drawn = [stacked(96, 3, rng(seed)) for seed in range(12)]
    for layer in (1, 2, 3):
        falls = [math.log(one["softmax"][layer - 1] / softmax_excess(96, layer)) for one in drawn]
        stays = [(1 + one["A - J"][layer - 1]) / kept_rank(96, layer) for one in drawn]
        assert abs(sum(falls) / len(falls)) < math.log(2)
        assert sum(stays) / len(stays) == pytest.approx(1.15, abs=0.35)  # the edge is approached from below
