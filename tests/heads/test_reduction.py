"""Chains of keys, and smaller patterns with the way back to the whole one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.heads.generate import block, sink_window, union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.reduction import Chain, chains, reduced

LEAK = 1e-3


def shuffled(pattern: Pattern, seed: int) -> Pattern:
    rng = np.random.default_rng(seed)
    rows, keys = rng.permutation(pattern.n), rng.permutation(pattern.n_keys)
    return Pattern.of(
        rows[pattern.rows], keys[pattern.columns], pattern.weights, n=pattern.n, n_keys=pattern.n_keys, normalise=True
    )


def one_hot(pattern: Pattern, leak: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a head with one dimension per key, exact ratios, and zeros as low as the leak requires."""
    low = np.log(pattern.weights.min()) + math.log(leak / pattern.n_keys) - 1
    dense = pattern.dense()
    return np.log(np.where(dense > 0, dense, 1.0)) + np.where(dense > 0, 0.0, low), np.eye(pattern.n_keys)


def attention(queries: np.ndarray, keys: np.ndarray, causal: bool) -> np.ndarray:
    logits = queries @ keys.T
    if causal:
        logits[np.triu_indices(len(logits), 1, logits.shape[1])] = -np.inf
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def random_pattern(n: int, n_keys: int, seed: int) -> Pattern:
    """Few different rows and columns, and sometimes a key that all rows have."""
    rng = np.random.default_rng(seed)
    small = rng.random((3, 4)) * (rng.random((3, 4)) < 0.6)
    small[:, 0] += 0.1 * (small.sum(axis=1) == 0)
    if seed % 2:
        small[:, rng.integers(4)] = 0.3
    dense = small[rng.integers(0, 3, n)][:, rng.integers(0, 4, n_keys)]
    dense[:, 0] += dense.sum(axis=1) == 0
    rows, columns = dense.nonzero()
    return Pattern.of(rows, columns, dense[rows, columns], n=n, n_keys=n_keys, normalise=True)


@given(st.integers(1, 12), st.integers(2, 12), st.integers(0, 10**6))
def test_a_lifted_head_has_the_whole_pattern(n: int, n_keys: int, seed: int) -> None:
    """Weights of the smaller pattern are normalised again, so ratios agree to a few units of float64. The leak is at
    most that required of the smaller pattern.
    """
    pattern = random_pattern(n, n_keys, seed)
    found = reduced(pattern, LEAK)
    queries, keys = found.lifted(*one_hot(found.pattern, found.leak))
    assert queries.shape == (pattern.n, found.pattern.n_keys + found.extra)
    given_ = attention(queries, keys, False)
    wanted = pattern.dense()
    assert (given_[wanted == 0].sum() <= LEAK * n) or not (wanted == 0).any()
    on = np.where(wanted > 0, given_, 0.0)
    np.testing.assert_allclose(on / on.sum(axis=1, keepdims=True), wanted, atol=1e-12)


def test_a_causal_sink_is_taken_off_and_put_back() -> None:
    pattern = sink_window(12, 3, causal=True, weights="random")
    found = reduced(pattern, LEAK)
    assert (found.extra, found.pattern.n, found.pattern.causal) == (1, 11, True)
    given_ = attention(*found.lifted(*one_hot(found.pattern, found.leak)), True)
    np.testing.assert_allclose(given_, pattern.dense(), atol=2 * LEAK)


def test_blocks_become_single_keys() -> None:
    found = reduced(shuffled(block(24, 4), 0), LEAK)
    assert (found.pattern.n, found.pattern.n_keys, found.pattern.k, found.extra) == (6, 6, 1, 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_keys_is_found_again(seed: int) -> None:
    found = reduced(shuffled(window(20, 2, weights="random"), seed), LEAK)
    assert (np.diff(found.pattern.columns.reshape(20, 2), axis=1) == 1).all()


def test_irreducible_patterns_stay_as_they_are() -> None:
    pattern = union_of_permutations(30, 3, 0)
    assert reduced(pattern, LEAK).pattern is pattern
    causal = window(16, 2, causal=True)
    assert reduced(causal, LEAK).pattern is causal


def pairs(*edges: tuple[int, ...], n_keys: int) -> Pattern:
    rows = np.repeat(np.arange(len(edges)), [len(edge) for edge in edges])
    columns = np.concatenate([np.array(edge) for edge in edges])
    return Pattern.of(rows, columns, np.ones(len(rows)), n=len(edges), n_keys=n_keys, normalise=True)


def test_a_path_a_cycle_and_a_key_of_its_own() -> None:
    found = chains(pairs((0, 3), (3, 1), (2, 4), (4, 5), (5, 2), (6,), n_keys=8))
    assert found == (Chain((0, 3, 1), False), Chain((6,), False), Chain((7,), False), Chain((2, 4, 5), True))


def test_a_pair_in_two_rows_is_a_path() -> None:
    assert chains(pairs((0, 1), (1, 0), n_keys=2)) == (Chain((0, 1), False),)


def test_three_partners_or_three_keys_are_no_chain() -> None:
    assert chains(pairs((0, 1), (0, 2), (0, 3), n_keys=4)) is None
    assert chains(window(8, 3)) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_union_of_two_permutations_is_cycles_and_neighbours_share_a_row(seed: int) -> None:
    pattern = union_of_permutations(50, 2, seed)
    found = chains(pattern)
    assert found is not None
    assert sorted(key for part in found for key in part.keys) == list(range(50))
    asked = {frozenset(map(int, row)) for row in pattern.columns.reshape(50, 2)}
    walked = {
        frozenset(pair)
        for part in found
        for pair in zip(part.keys, part.keys[1:] + part.keys[:1] * part.closed, strict=False)
    }
    assert walked == asked
