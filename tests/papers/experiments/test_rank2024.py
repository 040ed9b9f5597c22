"""`rank2024`, small enough to run in every test; heads of rank 1 against votes, farthest points by loops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.rank2024 import rank2024
from attnscope.papers.trials.rank_one_heads import (
    EXACT,
    FarthestPoint,
    RankHeads,
    agreement,
    best_error,
    farthest,
    formula_against_draws,
    random_units,
    right,
    unit_vectors,
)

TINY = replace(
    rank2024.presets["quick"],
    draws=500,
    vote_widths=(4, 8),
    vote_heads=(8, 16),
    width=4,
    points=5,
    ranks=(1, 2, 4),
    more=(1, 2),
    batch=8,
    steps=10,
    test=20,
)
NOT_RUN = {"published_table"}


def test_published_numbers_are_compared_at_their_own_width_only() -> None:
    wide = replace(TINY, width=64, ranks=(1, 32, 64), steps=2)
    measured = rank2024.run(wide, (0,), UnsavedSession()).measured
    assert {f"published_rank_{rank}" for rank in (1, 32, 64)} <= set(measured)
    assert "published_rank_1" not in rank2024.run(TINY, (0,), UnsavedSession()).measured


@pytest.mark.parametrize("width", [2, 3, 8])
def test_formulas_match_counted_votes(width: int) -> None:
    found = formula_against_draws(heads=6, width=width, draws=20_000, seed=3)
    # "chance" is the mean of the largest of independent shares; twice that is practically never reached.
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


def test_the_farthest_point_is_found_by_looking_at_all() -> None:
    x = unit_vectors(3, 7, 4, torch.Generator().manual_seed(0))
    for points, found in zip(x, farthest(x), strict=True):
        for point, answer in zip(points, found, strict=True):
            assert float((points - point).norm(dim=-1).max()) == pytest.approx(float((answer - point).norm()), abs=1e-6)


def test_one_head_of_full_rank_is_as_near_as_its_bound() -> None:
    x = unit_vectors(5, 7, 4, torch.Generator().manual_seed(0)).double()
    two = (x @ x.mT).topk(2, largest=False).values
    for beta in (10.0, 100.0, 1000.0):
        bound = 2 * 6 * torch.exp(-beta * (two[..., 1] - two[..., 0]))
        wrong = (FarthestPoint(beta)(x) - farthest(x)).norm(dim=-1)
        assert bool((wrong <= bound + beta * 2.0**-49).all())


def test_heads_equal_loops() -> None:
    model = RankHeads(width=6, heads=3, rank=2, seed=0).double()
    x = unit_vectors(2, 5, 6, torch.Generator().manual_seed(1)).double()
    wanted = torch.zeros_like(x)
    for head in range(3):
        some = slice(2 * head, 2 * head + 2)
        logits = (x @ model.query[some].T) @ (x @ model.key[some].T).mT
        wanted = wanted + logits.softmax(-1) @ x @ model.value[some].T @ model.write[:, some].T
    torch.testing.assert_close(model(x), wanted, atol=1e-13, rtol=0)


def test_it_can_be_scanned_and_nonsense_is_refused() -> None:
    x = unit_vectors(2, 9, 4, torch.Generator().manual_seed(0))
    entropy = [
        float(attnscope.scan(FarthestPoint(beta), [{"vectors": x}], measures="entropy").values("entropy").mean())
        for beta in (1.0, 100.0)
    ]
    assert entropy[1] < entropy[0]
    with pytest.raises(RefusalError, match="over 0"):
        FarthestPoint(0.0)
