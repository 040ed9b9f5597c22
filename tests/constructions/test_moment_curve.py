"""The moment curve: Gale's evenness, width 2k for any n, exact ratios, and the limits of precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.constructions.moment_curve import _polynomials, largest_n, moment_curve, needed_width, zeros_of
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy, Dtype
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.certificate import certify
from attnscope.heads.facts import Certificate
from attnscope.heads.generate import generate, union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import rounded
from attnscope.heads.solvers.universality import curve


def certified(pattern: Pattern, dtype: Dtype = "float64", width: int | None = None) -> Certificate:
    accuracy = Accuracy(dtype=dtype)
    factors = moment_curve(pattern, width or needed_width(pattern), accuracy, np.random.default_rng(0))
    return certify(rounded(factors, pattern, dtype, "moment_curve"), pattern, accuracy)


def test_runs_of_neighbours_carry_an_even_number_of_zeros() -> None:
    assert zeros_of(np.array([3]), 8) == [3, 3]
    assert zeros_of(np.array([3, 4]), 8) == [3, 4]
    assert zeros_of(np.array([2, 3, 4, 6]), 8) == [2, 3, 4, 3, 6, 6]
    assert zeros_of(np.array([0, 7]), 8) == [7, 0]  # neighbours on the circle
    assert zeros_of(np.array([0, 4]), 5) == [4, 0]  # neighbours too, for a query that sees five keys
    assert zeros_of(np.arange(4), 4) == []


@given(seed=st.integers(0, 10_000), n=st.integers(2, 10), extra=st.integers(0, 3), causal=st.booleans())
def test_polynomials_vanish_on_the_support_and_are_negative_on_all_other_visible_keys(
    seed: int, n: int, extra: int, causal: bool
) -> None:
    rng = np.random.default_rng(seed)
    n_keys = n if causal else n + extra
    mask = rng.random((n, n_keys)) < 0.35
    mask[np.arange(n), rng.integers(0, np.arange(n) + 1)] = True
    mask = np.tril(mask) if causal else mask
    at = mask.nonzero()
    pattern = Pattern.of(at[0], at[1], np.ones(len(at[0])), n=n, n_keys=n_keys, causal=causal, normalise=True)
    width = max(4, needed_width(pattern))
    values = _polynomials(pattern, width) @ curve(n_keys, width).T
    for row in range(n):
        support = np.flatnonzero(mask[row])
        others = np.setdiff1d(np.arange(pattern.visible[row]), support)
        scale = 4.0 ** (width / 2)
        assert np.ptp(values[row, support]) <= 1e-13 * scale
        assert (values[row, others] < values[row, support].min() - 1e-13 * scale).all()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_support_of_up_to_k_keys_is_served_by_the_same_keys_in_width_2k(k: int) -> None:
    n = 7
    supports = [s for size in range(1, k + 1) for s in itertools.combinations(range(n), size)]
    rows = np.repeat(np.arange(len(supports)), [len(s) for s in supports])
    weights = np.random.default_rng(0).uniform(1, 4, len(rows))
    pattern = Pattern.of(rows, np.concatenate(supports), weights, n=len(supports), n_keys=n, normalise=True)
    assert needed_width(pattern) == 2 * k
    assert certified(pattern).reached
    assert lower_bounds(pattern, Accuracy(), universal=True).best.width == 2 * k  # so this width is proved minimal


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["window", "sink_window", "strided", "block", "random_graph"])
def test_patterns_with_a_shape(name: str, causal: bool) -> None:
    pattern = generate(name, 48, 3, causal=causal)
    found = certified(pattern)
    assert found.reached
    assert found.d <= 2 * pattern.k
    assert found.ratio_error < 1e-4
    assert found.leak == pytest.approx(0.005, rel=0.05) or name == "window" or found.leak < 0.005


def test_windows_of_two_and_permutations_are_minimal_in_float32() -> None:
    for pattern in (window(300, 2), union_of_permutations(600, 1, 0)):
        found = certified(pattern, "float32")
        assert found.reached
        assert found.d == lower_bounds(pattern, Accuracy()).best.width == 2


def test_width_does_not_depend_on_n_and_logits_do() -> None:
    small, large = (certified(union_of_permutations(n, 2, 0)) for n in (32, 256))
    assert small.reached
    assert large.reached
    assert small.d == large.d == 4
    assert large.max_logit > 30 * small.max_logit


def test_wider_heads_than_needed_work_and_narrower_ones_are_refused() -> None:
    pattern = union_of_permutations(20, 2, 0)
    assert all(certified(pattern, width=width).reached for width in (4, 5, 8))
    assert certified(union_of_permutations(20, 1, 0), width=3).reached
    with pytest.raises(RefusalError, match="needs width 4 for this pattern, not 3"):
        moment_curve(pattern, 3, Accuracy(), np.random.default_rng(0))


def test_a_pattern_without_zeros_needs_no_polynomial() -> None:
    rows, columns = np.ones((3, 2)).nonzero()
    pattern = Pattern.of(rows, columns, np.array([0.3, 0.7] * 3), n=3, n_keys=2)
    assert certified(pattern).reached


def test_largest_n_grows_with_precision() -> None:
    sizes = [largest_n(dtype, 2, most=32) for dtype in ("bfloat16", "float16", "float32")]
    assert sizes == sorted(sizes)
    assert sizes[0] < 32 == sizes[2]
