"""Lower bounds against exhaustive search on tiny cases, linear programmes, and heads of known width."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.special import gammaln

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.bounds import _log_supports, bounds_for, dichotomies, lower_bounds, separated_rows
from attnscope.heads.certificate import certify
from attnscope.heads.generate import union_of_permutations, window
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.heads.signs import DENSE_UP_TO, PROVED_UP_TO, _start, proved_norm, sign_rank, spectral_norm


def from_mask(mask: np.ndarray, causal: bool = False) -> Pattern:
    rows, columns = mask.nonzero()
    return Pattern.of(
        rows, columns, np.ones(len(rows)), n=len(mask), n_keys=mask.shape[1], causal=causal, normalise=True
    )


def separable(support: tuple[int, ...], keys: np.ndarray) -> bool:
    """Whether a half-space cuts these keys out of all: a linear programme for (q, tau) with margin 1."""
    sign = -np.ones(len(keys))
    sign[list(support)] = 1
    constraints = -sign[:, None] * np.column_stack([keys, -np.ones(len(keys))])
    free = [(None, None)] * (keys.shape[1] + 1)
    return bool(linprog(np.zeros(len(free)), A_ub=constraints, b_ub=-np.ones(len(keys)), bounds=free).success)


def fits_a_line(mask: np.ndarray, causal: bool) -> bool:
    """Whether some order of the keys makes every support a prefix or a suffix of the keys its row sees: all orders."""
    for order in itertools.permutations(range(mask.shape[1])):
        seen = [[j for j in order if not causal or j <= i] for i in range(len(mask))]
        rows = [[bool(mask[i, j]) for j in keys] for i, keys in enumerate(seen)]
        if all(row == sorted(row) or row == sorted(row, reverse=True) for row in rows):
            return True
    return False


@given(seed=st.integers(0, 100_000), n=st.integers(2, 5), causal=st.booleans())
def test_width_one_is_never_refuted_where_an_order_of_the_keys_exists(seed: int, n: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((n, n)) < rng.uniform(0.2, 0.8)
    mask[np.arange(n), 0] |= ~np.tril(mask).any(axis=1)
    mask = np.tril(mask) if causal else mask
    if fits_a_line(mask, causal):
        assert lower_bounds(from_mask(mask, causal), Accuracy()).best.width == 1


def test_three_different_targets_refute_a_line() -> None:
    for n in (3, 4, 5):
        pattern = union_of_permutations(n, 1, 0)
        assert not fits_a_line(pattern.dense() > 0, causal=False)
        assert lower_bounds(pattern, Accuracy()).best.name == "line"
        assert lower_bounds(pattern, Accuracy()).best.width == 2
    assert lower_bounds(union_of_permutations(2, 1, 0), Accuracy()).best.width == 1
    assert lower_bounds(window(9, 1, causal=True), Accuracy()).best.width == 1  # keys in order: the last visible wins


@given(
    seed=st.integers(0, 100_000),
    n=st.integers(2, 14),
    n_keys=st.integers(2, 14),
    width=st.integers(1, 4),
    causal=st.booleans(),
    sharp=st.sampled_from([1.0, 4.0, 30.0]),
)
def test_no_head_goes_below_a_bound_that_proves(
    seed: int, n: int, n_keys: int, width: int, causal: bool, sharp: float
) -> None:
    """Read a pattern off a random head of known width: its best keys, its weights, and its leak as the accuracy."""
    rng = np.random.default_rng(seed)
    n_keys = n if causal else n_keys
    head = Head(
        torch.from_numpy(sharp * rng.standard_normal((n, width))),
        torch.from_numpy(rng.standard_normal((n_keys, width))),
        causal,
        "planted",
    )
    attention = head.attention().numpy()
    seen = np.minimum(np.arange(n) + 1, n_keys) if causal else np.full(n, n_keys)
    keep = [np.argsort(-row)[: rng.integers(1, s + 1)] for row, s in zip(attention, seen, strict=True)]
    mask = np.zeros((n, n_keys), dtype=bool)
    for row, columns in enumerate(keep):
        mask[row, columns] = True
    mask &= attention > 1e-12
    at = mask.nonzero()
    pattern = Pattern.of(at[0], at[1], attention[at], n=n, n_keys=n_keys, causal=causal, normalise=True)
    certificate = certify(head, pattern, Accuracy())
    accuracy = Accuracy(ratio_error=1e-3, leak=min(max(certificate.leak * 1.0001, 1e-6), 0.999))
    assert certify(head, pattern, accuracy).reached
    bounds = lower_bounds(pattern, accuracy)
    assert bounds.best.width <= width, bounds.best
    longest = certificate.query_norm * certificate.key_norm * head.scale
    assert bounds.logit_floor <= longest * (1 + 1e-9)


def test_separation_is_forced_exactly_where_it_is_claimed() -> None:
    """Weights (a, 1 - a): the worst allowed head has share a / (a + (1 + e)(1 - a)) on a, a zero up to L / (1 - L)."""
    accuracy = Accuracy(ratio_error=0.5, leak=0.2)
    edge = 1.5 * 0.25 / (1 - 0.25 + 1.5 * 0.25)  # where a / (a + 1.5 (1 - a)) = 0.25
    for weight, forced in ((edge + 0.01, True), (edge - 0.01, False)):
        pattern = Pattern.of(np.zeros(2, int), np.arange(2), np.array([weight, 1 - weight]), n=1, n_keys=3)
        assert separated_rows(pattern, accuracy).tolist() == [forced]
        support = np.log([weight, 1.5 * (1 - weight)])
        zero = np.log(np.exp(support).sum() * 0.25 * (1 - 1e-9))
        head = Head(torch.ones(1, 1).double(), torch.tensor([[*support, zero]]).double().T, False, "worst allowed")
        assert certify(head, pattern, Accuracy(ratio_error=0.5 + 1e-9, leak=0.2)).reached
        assert (zero < support[0]) == forced


@pytest.mark.parametrize("k", [1, 2])
def test_keys_for_all_supports_need_twice_k(k: int) -> None:
    keys, supports = 2 * k + 1, [s for size in range(1, k + 1) for s in itertools.combinations(range(2 * k + 1), size)]
    rng = np.random.default_rng(0)
    for _ in range(10):
        points = rng.standard_normal((keys, 2 * k - 1))
        assert not all(separable(support, points) for support in supports)
    angles = 2 * np.pi * np.arange(keys) / keys
    curve = np.column_stack([f(h * angles) for h in range(1, k + 1) for f in (np.cos, np.sin)])
    assert all(separable(support, curve) for support in supports)
    bound = bounds_for(keys, k, Accuracy())["universal"]
    assert (bound.width, bound.proves) == (2 * k, True)


def test_the_universal_bound_proves_only_for_universal_keys() -> None:
    pattern = union_of_permutations(32, 3, 0)
    assert not lower_bounds(pattern, Accuracy())["universal"].proves
    assert lower_bounds(pattern, Accuracy(), universal=True).best.width == 6
    assert not lower_bounds(pattern, Accuracy())["typical"].proves
    # at a leak of a third, zeros may lie above supports of two: only k = 1 is left to prove
    assert lower_bounds(pattern, Accuracy(leak=0.4), universal=True)["universal"].width == 2


def test_sign_rank_of_hadamard_and_of_regular_patterns() -> None:
    found = sign_rank(csr_array((hadamard(16) > 0).astype(float)))
    assert found.least == pytest.approx(4)
    assert found.proved
    ones = (union_of_permutations(60, 6, 1).dense() > 0).astype(float)
    second = np.linalg.svd(ones, compute_uv=False)[1]
    assert sign_rank(csr_array(ones)).least >= 6 / second * (1 - 2e-9)
    bounds = lower_bounds(from_mask(hadamard(64) > 0), Accuracy())
    assert bounds["signs"].width == 7
    assert bounds.best.width >= 7


def test_causal_rows_are_bounded_on_what_they_all_see() -> None:
    """Hadamard below and left of the diagonal: the late half of the rows against the early half of the keys."""
    mask = np.eye(64, dtype=bool)
    mask[32:, :32] = hadamard(32) > 0
    bounds = lower_bounds(from_mask(mask, causal=True), Accuracy())
    assert bounds["signs"].width >= 4
    assert lower_bounds(from_mask(np.tril(np.ones((8, 8), dtype=bool)), causal=True), Accuracy()).best.width == 1


def test_cuts_are_counted_as_cover_does() -> None:
    assert [dichotomies(4, d) for d in range(4)] == [2, 8, 14, 16]
    every = np.array(list(itertools.product([False, True], repeat=4)))[
        1:
    ]  # all supports of four keys but the empty one
    bounds = lower_bounds(from_mask(every), Accuracy())
    assert bounds["cuts"].width == 3  # 15 cuts of 4 points: the plane has 14
    assert not all(separable(tuple(np.flatnonzero(s)), np.random.default_rng(0).standard_normal((4, 2))) for s in every)


def test_log_weights_of_rows_that_share_a_support_need_their_rank() -> None:
    rng = np.random.default_rng(0)
    log = rng.standard_normal((12, 3)) @ rng.standard_normal((3, 8))
    rows, columns = np.ones((12, 8)).nonzero()
    pattern = Pattern.of(rows, columns, np.exp(log).ravel(), n=12, n_keys=8, normalise=True)
    assert lower_bounds(pattern, Accuracy(ratio_error=0.01))["ratios"].width == 3
    assert lower_bounds(pattern, Accuracy(ratio_error=90.0))["ratios"].width == 1


def test_typical_patterns_follow_the_closed_form() -> None:
    for n, k in ((4096, 64), (65_536, 32)):
        width = bounds_for(n, k, Accuracy(leak=1e-3))["typical"].width
        closed = k / 2 * math.log(n / k) / math.log(4 * math.e * n / width)
        assert width == pytest.approx(closed, rel=0.35, abs=1)
    causal, free = (bounds_for(2048, 32, Accuracy(leak=1e-3), causal=c)["typical"].width for c in (True, False))
    assert causal <= free


def test_the_logit_floor_is_near_the_need_of_simplex_keys() -> None:
    """Simplex keys with one target each have |q||k| slightly above g n / (n - 1), and the floor is g."""
    floor = lower_bounds(union_of_permutations(64, 1, 0), Accuracy()).logit_floor
    gap = math.log(63 * 0.99 / 0.01) - math.log1p(0.1)
    assert floor == pytest.approx(gap * 63 / 64, rel=1e-6)
    assert bounds_for(64, 1, Accuracy()).logit_floor == pytest.approx(gap * 63 / 64)
    assert bounds_for(64, 4, Accuracy()).logit_floor > 1.5 * bounds_for(64, 1, Accuracy()).logit_floor
    assert lower_bounds(from_mask(np.ones((4, 4), dtype=bool)), Accuracy()).logit_floor == 0


def test_large_matrices_have_the_norm_of_small_ones() -> None:
    matrix = np.random.default_rng(0).standard_normal((DENSE_UP_TO + 40, DENSE_UP_TO + 1))
    norm = spectral_norm(lambda x: matrix @ x, lambda y: matrix.T @ y, matrix.shape)
    assert norm == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-5)
    assert norm >= np.linalg.norm(matrix, 2)
    turn = np.random.default_rng(1).permutation(DENSE_UP_TO + 9)  # all singular values are one
    assert spectral_norm(lambda x: x[turn], lambda y: y[np.argsort(turn)], (len(turn),) * 2) == pytest.approx(1)


def test_a_norm_that_products_do_not_show_is_not_proved() -> None:
    """A direction of norm 10 is orthogonal to the start of every Krylov space: Lanczos returns 1, and the proof rejects
    it.
    """
    size = DENSE_UP_TO + 88
    start = _start(size)
    hidden = np.eye(size)[0] - start[0] * start
    hidden /= np.linalg.norm(hidden)

    def forward(x: np.ndarray) -> np.ndarray:
        return np.asarray(x + 9 * np.multiply.outer(hidden, hidden @ x).reshape(x.shape))

    guess = spectral_norm(forward, forward, (size, size))
    assert guess == pytest.approx(1, rel=1e-3)
    assert proved_norm(guess, forward, (size, size)) is None
    assert proved_norm(10.0, forward, (size, size)) == pytest.approx(10, rel=2e-5)
    assert proved_norm(10.0, forward, (PROVED_UP_TO + 1, size)) is None


def test_bounds_read_as_json_and_refuse_nonsense() -> None:
    told = lower_bounds(union_of_permutations(8, 2, 0), Accuracy()).to_json()
    assert told["lower_bound"] == 2
    assert {"name", "width", "proves", "statement", "citation"} == set(told["bounds"][0])
    with pytest.raises(RefusalError, match="between 1 and n"):
        bounds_for(4, 5, Accuracy())


@pytest.mark.parametrize(("n", "k"), [(2, 1), (64, 8), (4096, 4096), (100_000, 3)])
def test_log_supports_shortcut_equals_the_general_formula(n: int, k: int) -> None:
    """Both computations are accurate to a few units in the last place of each term."""
    visible, counts = np.full(50, n), np.full(50, k)
    terms = gammaln(np.array([n + 1.0, k + 1.0, n - k + 1.0]))
    slack = 50 * 8 * np.finfo(float).eps * float(np.abs(terms).sum())
    every = float((gammaln(visible + 1) - gammaln(counts + 1) - gammaln(visible - counts + 1)).sum())
    assert abs(_log_supports(visible, counts) - every) <= slack
    mixed = _log_supports(np.append(visible, n), np.append(counts, 1))
    assert abs(mixed - every - math.log(n)) <= 2 * slack
