"""Generators: the number of keys in a row, their positions, and none beyond a causal mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads.generate import (
    GENERATORS,
    Weights,
    block,
    generate,
    induction,
    permutation,
    previous_token,
    random_graph,
    sink_window,
    strided,
    union_of_permutations,
    window,
)
from attnscope.heads.pattern import Pattern

ONE_KEY = ("permutation", "previous_token")
EXACTLY_K = ("permutation", "union_of_permutations", "window", "strided", "sink_window", "previous_token")
sizes = st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def keys(pattern: Pattern) -> list[list[int]]:
    return [row.tolist() for row in np.split(pattern.columns, pattern.starts[1:-1])]


def test_window_by_hand() -> None:
    assert keys(window(5, 3)) == [[0, 1, 2], [0, 1, 2], [1, 2, 3], [2, 3, 4], [2, 3, 4]]
    assert keys(window(4, 2)) == [[0, 1], [0, 1], [1, 2], [2, 3]]
    assert keys(window(4, 2, causal=True)) == [[0], [0, 1], [1, 2], [2, 3]]


def test_strided_by_hand() -> None:
    assert keys(strided(6, 3)) == [[0, 2, 4], [1, 3, 5], [0, 2, 4], [1, 3, 5], [0, 2, 4], [1, 3, 5]]
    assert keys(strided(5, 2, causal=True)) == [[0], [1], [0, 2], [1, 3], [2, 4]]
    assert keys(strided(5, 2, stride=4, causal=True)) == [[0], [1], [2], [3], [0, 4]]
    for stride in (0, 5):
        with pytest.raises(RefusalError, match="choose a stride from 1 to 2"):
            strided(5, 2, stride=stride)


def test_sink_window_by_hand() -> None:
    assert keys(sink_window(5, 3, causal=True)) == [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4]]
    assert keys(sink_window(5, 3)) == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2, 3], [0, 3, 4]]
    assert keys(sink_window(3, 1)) == [[0], [0], [0]]


def test_block_by_hand() -> None:
    assert keys(block(5, 2)) == [[0, 1], [0, 1], [2, 3], [2, 3], [4]]
    assert keys(block(5, 2, causal=True)) == [[0], [0, 1], [2], [2, 3], [4]]


def test_previous_token_by_hand() -> None:
    assert keys(previous_token(4)) == [[0], [0], [1], [2]]
    assert keys(previous_token(["a", "b", "a"], causal=True)) == [[0], [0], [1]]


def test_induction_by_hand() -> None:
    #        0    1    2    3    4    5    6
    tokens = ["a", "b", "a", "c", "a", "b", "d"]
    assert keys(induction(tokens)) == [[0], [0], [1], [0], [1, 3], [2], [0]]
    assert induction(tokens).weights[4:6].tolist() == [0.5, 0.5]
    assert "k=2" in induction(tokens, causal=True).name
    assert keys(induction([7])) == [[0]]
    with pytest.raises(RefusalError, match="0 queries"):
        induction([])


def test_tokens_as_a_tokenizer_gives_them() -> None:
    """Elements of a tensor are never equal as dict keys, so they must be converted to numbers first."""
    tokens = [5, 3, 5, 3, 3]
    wanted = [[0], [0], [1], [2], [2, 4]]
    for held in (tokens, tuple(tokens), np.array(tokens), torch.tensor(tokens)):
        assert keys(induction(held)) == wanted
        assert previous_token(held).n == 5
    assert keys(induction("cbcbb")) == wanted
    assert previous_token(np.int64(4)).n == 4
    for wrong in (torch.tensor([tokens]), [[5, 3]], {5, 3}):
        with pytest.raises(RefusalError, match="not one sequence"):
            induction(wrong)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_induction_equals_its_definition(tokens: list[int]) -> None:
    slow = [[j + 1 for j in range(i) if tokens[j] == tokens[i]] or [0] for i in range(len(tokens))]
    assert keys(induction(tokens, causal=True)) == slow


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", GENERATORS)
@settings(max_examples=25)
@given(size=sizes, seed=st.integers(0, 2**40), weights=st.sampled_from([None, "uniform", "random"]))
def test_every_generator(name: str, causal: bool, size: tuple[int, int], seed: int, weights: Weights | None) -> None:
    n, k = (size[0], 1) if name in ONE_KEY else size
    pattern = generate(name, n, k, seed, causal, weights)
    assert (pattern.n, pattern.n_keys, pattern.causal) == (n, n, causal)
    assert (pattern.counts >= 1).all()
    assert (pattern.counts <= k).all()
    np.testing.assert_allclose(pattern.dense().sum(axis=1), 1, rtol=1e-14)
    limit = 4 if weights == "random" or (weights is None and name == "union_of_permutations") else 1
    assert pattern.spread <= limit * (1 + 1e-12)
    assert f"n={n}" in pattern.name
    assert name.replace("_", " ") in pattern.name
    assert pattern.name.startswith("causal ") == causal
    if causal:
        assert (pattern.columns <= pattern.rows).all()
    elif name in EXACTLY_K:
        assert (pattern.counts == k).all()
    if causal and name in ("union_of_permutations", "window", "sink_window"):
        np.testing.assert_array_equal(pattern.counts, np.minimum(np.arange(n) + 1, k))
    again = generate(name, n, k, seed, causal, weights)
    np.testing.assert_array_equal(pattern.dense(), again.dense())


@given(sizes, st.integers(0, 2**20))
def test_permutations_share_no_entry_and_fill_columns_evenly(size: tuple[int, int], seed: int) -> None:
    pattern = union_of_permutations(*size, seed)
    assert (np.bincount(pattern.columns, minlength=size[0]) == size[1]).all()
    assert pattern.k_columns == size[1]


@given(sizes, st.integers(0, 2**20))
def test_causal_draws_take_no_key_more_than_2k_times(size: tuple[int, int], seed: int) -> None:
    assert union_of_permutations(*size, seed, causal=True).k_columns <= 2 * size[1]


def test_a_large_union_has_weights_that_fill_the_factor_four() -> None:
    pattern = union_of_permutations(512, 8, seed=3)
    assert 3.5 < pattern.spread <= 4
    ratios = pattern.weights * 512
    assert len(np.unique(ratios)) == 512 * 8
    np.testing.assert_array_equal(keys(pattern), keys(union_of_permutations(512, 8, seed=3, weights="uniform")))
    assert keys(pattern) != keys(union_of_permutations(512, 8, seed=4))


@given(sizes, st.integers(0, 2**20))
def test_a_random_graph_is_symmetric_and_has_no_loops_but_for_lonely_nodes(size: tuple[int, int], seed: int) -> None:
    support = random_graph(*size, seed).dense() > 0
    np.testing.assert_array_equal(support, support.T)
    lonely = np.diag(support)
    assert (support.sum(axis=1)[lonely] == 1).all()
    looped = random_graph(*size, seed, loops=True).dense() > 0
    assert np.diag(looped).all()
    assert (looped.sum(axis=1) <= size[1]).all()


def test_a_random_graph_of_some_size_is_all_but_regular() -> None:
    counts = random_graph(400, 6, seed=5).counts
    assert (counts == 6).mean() > 0.98


def test_a_causal_random_graph_is_the_lower_half() -> None:
    whole, half = random_graph(60, 5, 1).dense() > 0, random_graph(60, 5, 1, causal=True).dense() > 0
    np.testing.assert_array_equal(np.tril(half, -1), np.tril(whole, -1))


def test_generated_induction_looks_back_at_exactly_k() -> None:
    assert generate("induction", 40, 3, seed=2).k == 3
    assert generate("induction", 40, 1, seed=2).k == 1


def test_permutation_uses_every_key_once() -> None:
    pattern = permutation(50, 7)
    assert sorted(pattern.columns.tolist()) == list(range(50))
    assert pattern.columns.tolist() != permutation(50, 8).columns.tolist()


@pytest.mark.parametrize(
    ("name", "n", "k", "seed", "words"),
    [
        ("windw", 8, 2, 0, "Did you mean 'window'?"),
        ("qqq", 8, 2, 0, "Known: block, induction,"),
        ("window", 0, 1, 0, "A pattern of 0 queries"),
        ("window", 8, 9, 0, "choose k from 1 to 8"),
        ("block", 8, 0, 0, "choose k from 1 to 8"),
        ("union_of_permutations", 8, 2, -1, "A seed of -1"),
        ("random_graph", 8, 2, -1, "A seed of -1"),
        ("induction", 8, 2, -1, "A seed of -1"),
        ("permutation", 8, 2, 0, "one key per query, not 2"),
        ("previous_token", 8, 2, 0, "one key per query, not 2"),
        ("window", 2**24, 2**20, 0, "would not fit into memory"),
    ],
)
def test_refusals(name: str, n: int, k: int, seed: int, words: str) -> None:
    with pytest.raises(RefusalError) as caught:
        generate(name, n, k, seed)
    assert words in str(caught.value)


def test_a_negative_seed_is_refused_only_where_it_is_used() -> None:
    with pytest.raises(RefusalError, match="A seed of -2"):
        window(8, 2, weights="random", seed=-2)
    assert window(8, 2, seed=-2).k == 2
