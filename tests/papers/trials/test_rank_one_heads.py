"""Hard heads of rank 1 as voters: formulas against counted votes, closed forms and brute force."""

from __future__ import annotations

import math

import pytest
import torch

from attnscope.papers.trials.rank_one_heads import (
    EXACT,
    agreement,
    best_error,
    formula_against_draws,
    random_units,
    right,
)


@pytest.mark.parametrize("width", [2, 3, 8])
def test_formulas_match_counted_votes(width: int) -> None:
    found = formula_against_draws(heads=6, width=width, draws=20_000, seed=3)
    # "chance" is what the largest of independent shares reaches on the average; twice that is out of its reach.
    assert found["agreement"] < 2 * found["chance"]
    assert found["right"] < 2 * found["chance"]


def test_in_the_plane_the_integral_is_elementary() -> None:
    """Width 2: rho is 1 and arcsin(cos psi) = pi/2 - psi, so b = 1/2 + (2/pi^2)(pi alpha/2 - alpha^2/2), alpha >= 0."""
    for alpha in (0.0, 0.3, 1.0, math.pi / 2):
        u = torch.tensor([[1.0, 0.0]], dtype=EXACT)
        w = torch.tensor([[math.sin(alpha), math.cos(alpha)]], dtype=EXACT)
        wanted = 0.5 + (2 / math.pi**2) * (math.pi * alpha / 2 - alpha**2 / 2)
        # arcsin near 1 loses half the digits: alpha itself is known to sqrt(2^-53) there.
        assert float(right(u, w)) == pytest.approx(wanted, abs=1e-7)


def test_reversed_head_is_wrong_as_often_as_it_was_right() -> None:
    rng = torch.Generator().manual_seed(0)
    u, w = random_units(20, 5, rng), random_units(20, 5, rng)
    torch.testing.assert_close(right(u, w) + right(u, -w), torch.ones(20, dtype=EXACT), atol=1e-14, rtol=0)


def test_the_best_weights_beat_every_other_and_equal_heads_add_nothing() -> None:
    rng = torch.Generator().manual_seed(1)
    u, w = random_units(12, 4, rng), random_units(12, 4, rng)
    best = best_error(u, w)
    C, b = agreement(u, w), right(u, w)
    for _ in range(50):
        a = torch.randn(12, generator=rng, dtype=EXACT) / 6
        assert float(1 - 2 * a @ b + a @ C @ a) >= best - 1e-12
    assert best_error(torch.cat([u, u]), torch.cat([w, w])) == pytest.approx(best, abs=1e-9)
    assert best_error(u[:6], w[:6]) >= best - 1e-12
