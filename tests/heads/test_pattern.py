"""Patterns: checks of the entries, independence of their order, and derived properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads.pattern import Pattern

Entry = tuple[int, int, float]


def made(
    entries: list[Entry], n: int = 3, n_keys: int | None = None, *, causal: bool = False, normalise: bool = False
) -> Pattern:
    rows, columns, weights = (np.array([entry[part] for entry in entries]) for part in range(3))
    return Pattern.of(
        rows.astype(np.int64),
        columns.astype(np.int64),
        weights.astype(np.float64),
        n=n,
        n_keys=n_keys,
        causal=causal,
        normalise=normalise,
    )


BY_HAND: list[Entry] = [(0, 0, 1.0), (1, 2, 0.75), (1, 0, 0.25), (2, 1, 0.5), (2, 2, 0.5), (2, 0, 0.0)]


def test_a_pattern_by_hand() -> None:
    pattern = made(BY_HAND)
    assert (pattern.n, pattern.n_keys, pattern.k, pattern.k_columns) == (3, 3, 2, 2)
    assert pattern.spread == 3
    assert pattern.counts.tolist() == [1, 2, 2]
    assert pattern.rows.tolist() == [0, 1, 1, 2, 2]
    assert pattern.columns.tolist() == [0, 0, 2, 1, 2]
    np.testing.assert_array_equal(pattern.dense(), [[1, 0, 0], [0.25, 0, 0.75], [0, 0.5, 0.5]])
    assert repr(pattern) == "Pattern('pattern', 3 x 3, k=2)"


def test_padded_rectangles_repeat_a_rows_first_key() -> None:
    support, weights, real = made(BY_HAND).padded()
    assert support.tolist() == [[0, 0], [0, 2], [1, 2]]
    assert weights.tolist() == [[1, 1], [0.25, 0.75], [0.5, 0.5]]
    assert real.tolist() == [[True, False], [True, True], [True, True]]


def test_visible_keys_and_patterns_that_cannot_leak() -> None:
    lower = made([(0, 0, 1), (1, 0, 0.5), (1, 1, 0.5)], 2, causal=True)
    assert lower.visible.tolist() == [1, 2]
    assert lower.free
    assert repr(lower) == "Pattern('pattern', 2 x 2, k=2, causal)"
    open_one = made([(0, 0, 1), (1, 0, 0.5), (1, 1, 0.5)], 2)
    assert open_one.visible.tolist() == [2, 2]
    assert not open_one.free


def test_a_rectangular_pattern() -> None:
    pattern = made([(0, 4, 1), (1, 2, 1)], 2, 5)
    assert pattern.dense().shape == (2, 5)
    assert pattern.k_columns == 1


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(0, 0, 1), (1, 1, -0.5), (2, 2, 1)], ("Entry (1, 1)", "negative")),
        ([(0, 0, 1), (1, 1, np.nan), (2, 2, 1)], ("Entry (1, 1)", "finite")),
        ([(0, 0, 1), (1, 1, np.inf), (2, 2, 1)], ("Entry (1, 1)", "finite")),
        ([(0, 0, 1), (2, 2, 1)], ("Row 1 is empty",)),
        ([(0, 0, 1), (1, 1, 0.0), (2, 2, 1)], ("Row 1 is empty",)),
        ([(0, 0, 1), (1, 1, 0.5), (2, 2, 1)], ("Row 1 sums to 0.5", "normalise")),
        ([(0, 0, 1), (1, 1, 0.5), (1, 1, 0.5), (2, 2, 1)], ("Entry (1, 1) appears twice",)),
        ([(0, 3, 1), (1, 1, 1), (2, 2, 1)], ("Entry (0, 3) lies outside", "3 x 3")),
        ([(0, -1, 1), (1, 1, 1), (2, 2, 1)], ("Entry (0, -1) lies outside",)),
        ([(3, 0, 1), (1, 1, 1), (2, 2, 1)], ("Entry (3, 0) lies outside",)),
        ([], ("Row 0 is empty",)),
    ],
)
def test_refusals_name_the_place(entries: list[Entry], words: tuple[str, ...]) -> None:
    with pytest.raises(RefusalError) as caught:
        made(entries)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_causal_pattern_may_not_look_ahead() -> None:
    entries: list[Entry] = [(0, 0, 1), (1, 2, 1), (2, 1, 1)]
    made(entries)
    with pytest.raises(RefusalError, match=r"Entry \(1, 2\) looks into the future"):
        made(entries, causal=True)
    made([(0, 0, 1), (1, 2, 0), (1, 1, 1), (2, 1, 1)], causal=True)  # a weight of zero is not an entry


def test_no_rows_and_no_keys() -> None:
    for n, n_keys in ((0, 3), (3, 0)):
        with pytest.raises(RefusalError, match="at least one query and one key"):
            made([], n, n_keys)


def test_single_precision_rows_are_made_exact() -> None:
    third = float(np.float32(1 / 3))
    pattern = made([(0, key, third) for key in range(3)], 1, 3)
    assert pattern.weights.sum() == pytest.approx(1, abs=1e-15)


def test_weights_near_the_limits_of_float64() -> None:
    assert made([(0, 0, 1.5e308), (0, 1, 1.5e308)], 1, 2, normalise=True).weights.tolist() == [0.5, 0.5]
    assert made([(0, 0, 5e-324), (0, 1, 5e-324)], 1, 2, normalise=True).weights.tolist() == [0.5, 0.5]
    with pytest.raises(RefusalError, match=r"Entry \(0, 1\) is too small"):
        made([(0, 0, 1e308), (0, 1, 1e-300)], 1, 2, normalise=True)


@st.composite
def positive_rows(draw: st.DrawFn) -> np.ndarray:
    n, n_keys = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    rows = [
        draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0, 0.01]), min_size=n_keys, max_size=n_keys)) for _ in range(n)
    ]
    weights = np.array(rows)
    weights[np.arange(n), [draw(st.integers(0, n_keys - 1)) for _ in range(n)]] = 3.0
    return weights


@given(positive_rows(), st.randoms(use_true_random=False))
def test_the_order_of_entries_changes_nothing_and_rows_sum_to_one(weights: np.ndarray, random: object) -> None:
    entries = [(i, j, float(weights[i, j])) for i, j in np.ndindex(weights.shape)]
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = (made(some, *weights.shape, normalise=True) for some in (entries, shuffled))
    np.testing.assert_array_equal(first.starts, second.starts)
    np.testing.assert_array_equal(first.columns, second.columns)
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_allclose(first.dense(), weights / weights.sum(axis=1, keepdims=True), rtol=1e-14)
    np.testing.assert_allclose(first.dense().sum(axis=1), 1, rtol=1e-14)


@given(positive_rows(), st.data())
def test_normalising_hides_the_scale_of_rows(weights: np.ndarray, data: st.DataObject) -> None:
    scale = data.draw(st.lists(st.floats(1e-200, 1e200), min_size=len(weights), max_size=len(weights)))
    scaled = weights * np.array(scale)[:, None]
    plain, large = (
        made([(i, j, float(some[i, j])) for i, j in np.ndindex(some.shape)], *some.shape, normalise=True)
        for some in (weights, scaled)
    )
    np.testing.assert_allclose(plain.dense(), large.dense(), rtol=1e-14)


@given(positive_rows(), st.data())
def test_permuting_rows_and_columns_permutes_the_matrix(weights: np.ndarray, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.permutations(range(weights.shape[0]))))
    columns = np.array(data.draw(st.permutations(range(weights.shape[1]))))
    pattern = made([(i, j, float(weights[i, j])) for i, j in np.ndindex(weights.shape)], *weights.shape, normalise=True)
    moved = Pattern.of(
        rows[pattern.rows], columns[pattern.columns], pattern.weights, n=pattern.n, n_keys=pattern.n_keys
    )
    # the order of the sum differs, so the last bit may differ
    np.testing.assert_allclose(moved.dense()[np.ix_(rows, columns)], pattern.dense(), rtol=1e-15, atol=0)
    assert (moved.k, moved.k_columns) == (pattern.k, pattern.k_columns)
    assert moved.spread == pytest.approx(pattern.spread, rel=1e-14)
