"""Exact ratios: by the smallest change of queries, row by row, and by moving queries and keys together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.constructions.joint import joint
from attnscope.heads import accuracy as ratios
from attnscope.heads.accuracy import Accuracy, Factors, with_exact_ratios
from attnscope.heads.generate import union_of_permutations
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import certified, rounded
from attnscope.heads.solvers import descent
from attnscope.heads.solvers.descent import Target, TwoSides, ratio_residuals


def uneven(seed: int, n: int, n_keys: int) -> Pattern:
    """Rows of one to three entries."""
    rng = np.random.default_rng(seed)
    entries = [(i, j) for i in range(n) for j in rng.choice(n_keys, rng.integers(1, 4), replace=False)]
    rows, columns = (np.array(axis) for axis in zip(*entries, strict=True))
    return Pattern.of(rows, columns, rng.uniform(1, 4, len(rows)), n=n, n_keys=n_keys, normalise=True)


def residual_range(queries: np.ndarray, keys: np.ndarray, pattern: Pattern) -> float:
    left = (queries @ keys.T)[pattern.rows, pattern.columns] - np.log(pattern.weights)
    starts = pattern.starts[:-1]
    return float((np.maximum.reduceat(left, starts) - np.minimum.reduceat(left, starts)).max())


@given(seed=st.integers(0, 10_000), n=st.integers(1, 12), width=st.integers(2, 6))
def test_ratios_come_out_exact_by_the_smallest_change(seed: int, n: int, width: int) -> None:
    pattern = uneven(seed, n, n_keys=5)
    rng = np.random.default_rng(seed)
    queries, keys = rng.standard_normal((n, width)), rng.standard_normal((5, width))
    exact = with_exact_ratios(queries, keys, pattern)
    assert residual_range(exact, keys, pattern) < 1e-7
    # smallest: the change lies in the span of the differences of support keys, and repeating it changes nothing
    for row in range(n):
        support = pattern.columns[pattern.starts[row] : pattern.starts[row + 1]]
        span = keys[support[1:]] - keys[support[0]]
        change = exact[row] - queries[row]
        inside = span.T @ np.linalg.lstsq(span.T, change, rcond=None)[0] if len(span) else 0 * change
        assert np.allclose(inside, change, atol=1e-7 * (1 + np.abs(change).max()))
    assert np.allclose(with_exact_ratios(exact, keys, pattern), exact, atol=1e-7 * (1 + np.abs(exact).max()))


def test_rows_of_one_entry_keep_their_queries() -> None:
    pattern = union_of_permutations(8, 1, 0)
    queries = np.random.default_rng(0).standard_normal((8, 2))
    assert np.array_equal(with_exact_ratios(queries, queries, pattern), queries)


def test_too_narrow_a_head_gets_the_least_squares() -> None:
    pattern = Pattern.of(np.zeros(3, int), np.arange(3), np.array([0.2, 0.3, 0.5]), n=1, n_keys=3)
    keys = np.array([[0.0], [1.0], [2.0]])
    found = with_exact_ratios(np.zeros((1, 1)), keys, pattern)
    differences, wanted = np.array([1.0, 2.0]), np.log([1.5, 2.5])
    assert found[0, 0] == pytest.approx(differences @ wanted / (differences @ differences))


def test_blocks_of_rows_agree_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = union_of_permutations(20, 3, 0)
    rng = np.random.default_rng(1)
    queries, keys = rng.standard_normal((20, 6)), rng.standard_normal((20, 6))
    whole = with_exact_ratios(queries, keys, pattern)
    monkeypatch.setattr(ratios, "_ROWS_AT_ONCE", 7)
    assert np.allclose(with_exact_ratios(queries, keys, pattern), whole, rtol=1e-12)


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
    """Compare with the pseudo-inverse of the Jacobian from autograd."""
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
    assert new_queries[0].norm() > 2  # a zero query would have uniform ratios too


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


def test_half_precision_gets_ratios_by_queries_alone() -> None:
    """Half precision cannot place keys finely enough."""
    assert not joint(wheel(8), 1, Accuracy(dtype="bfloat16"), np.random.default_rng(0)).as_found
