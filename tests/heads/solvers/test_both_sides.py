"""Ratios by queries and keys together: the step is the smallest one, and rows fuller than the width get theirs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.constructions.joint import joint
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import certified, rounded
from attnscope.heads.solvers import descent
from attnscope.heads.solvers.descent import Target, TwoSides, ratio_residuals

EXACT = torch.float64


def wheel(n: int, weights: str = "uniform") -> Pattern:
    """A ring whose nodes also see the hub, key 0, and a hub that sees all the others: a row of n - 1 keys."""
    ring = np.arange(1, n)
    rows = np.concatenate([ring, ring, np.zeros(n - 1, dtype=np.int64)])
    columns = np.concatenate([np.roll(ring, 1), np.roll(ring, -1), ring])
    drawn = np.random.default_rng(0).uniform(1, 4, len(rows)) if weights == "random" else np.ones(len(rows))
    return Pattern.of(rows, columns, drawn, n=n, normalise=True)


def somewhere(pattern: Pattern, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = (pattern.n, width), (pattern.n_keys, width)
    queries, keys = (torch.randn(*size, generator=generator, dtype=EXACT) for size in sizes)
    return queries, keys


def test_a_step_is_the_smallest_that_solves_the_linear_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the pseudo-inverse of the Jacobian that automatic differentiation gives."""
    monkeypatch.setattr(descent, "ENOUGH", 1e-14)
    pattern = wheel(7, "random")
    target = Target.of(pattern, EXACT)
    queries, keys = somewhere(pattern, 3)
    of_queries, of_keys = torch.autograd.functional.jacobian(
        lambda q, k: ratio_residuals(q, k, target).flatten(), (queries, keys)
    )
    jacobian = torch.cat([of_queries.flatten(1), of_keys.flatten(1)], dim=1)
    wanted = -torch.linalg.pinv(jacobian, rtol=1e-10) @ ratio_residuals(queries, keys, target).flatten()
    to_queries, to_keys = descent._smallest_step(queries, keys, target, iterations=200)
    found = torch.cat([to_queries.flatten(), to_keys.flatten()])
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("weights", ["uniform", "random"])
def test_full_rows_get_their_ratios_and_roomy_ones_exactly(weights: str) -> None:
    pattern = wheel(16, weights)
    target = Target.of(pattern, EXACT)
    queries, keys = somewhere(pattern, 5)
    keys[:, 0] = 1 + 0.2 * keys[:, 0]  # nearly on a plane across the hub's query, as a descent leaves them
    queries[0] = torch.tensor([3.0, 0, 0, 0, 0])
    before = ratio_residuals(queries, keys, target).abs().amax(1)
    new_queries, new_keys = TwoSides(target, 5).onto_ratios(queries, keys, rounds=4, iterations=60)
    after = ratio_residuals(new_queries, new_keys, target).abs().amax(1)
    assert before[0] > 0.5
    assert after[0] < 1e-3
    assert after[1:].max() < 1e-8
    assert new_queries[0].norm() > 2  # a query of nothing would have uniform ratios too


def test_a_row_of_many_keys_fits_a_narrow_head() -> None:
    """A row of 23 keys that leaves 24 others out has exact ratios by its query alone from width 23 on."""
    ring = np.arange(48)
    rows = np.concatenate([ring, ring, np.full(23, 48)])
    columns = np.concatenate([ring, (ring + 1) % 48, np.arange(0, 46, 2)])
    pattern = Pattern.of(rows, columns, np.ones(len(rows)), n=49, n_keys=48, normalise=True)
    factors = joint(pattern, 8, Accuracy(), np.random.default_rng(0))
    assert factors.as_found
    assert certified(factors, pattern, Accuracy(), "joint").certificate.reached


def test_rounding_leaves_queries_with_exact_ratios_alone() -> None:
    pattern = wheel(12)
    queries, keys = (array.numpy() for array in somewhere(pattern, 4))
    kept = rounded(Factors(queries, keys, as_found=True), pattern, "float64", "joint")
    np.testing.assert_allclose(kept.queries.numpy(), 2 * queries, rtol=1e-12)
    lost = rounded(Factors(queries, keys), pattern, "float64", "joint")
    assert lost.queries[0].norm() < 1e-6  # the only exact solution of a row that fills the width


def test_half_precision_asks_queries_for_ratios() -> None:
    """There keys cannot be placed finely enough."""
    assert not joint(wheel(8), 1, Accuracy(dtype="bfloat16"), np.random.default_rng(0)).as_found
