"""Exact ratios: met wherever they can be, by the smallest change, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.heads import accuracy as ratios
from attnscope.heads.accuracy import with_exact_ratios
from attnscope.heads.generate import union_of_permutations
from attnscope.heads.pattern import Pattern


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
