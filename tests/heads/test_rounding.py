"""Rounding: ratios, corners, overflow, short queries, certifying in one step, and the quick check, which is never more
lenient.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.heads.accuracy import DTYPES, Accuracy, Dtype, Factors, with_exact_ratios
from attnscope.heads.certificate import certified_rows, certify
from attnscope.heads.generate import sink_window, union_of_permutations, window
from attnscope.heads.head import Head, Rows
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import _other_neighbour, certified, rounded, surely_certified
from attnscope.heads.solvers.keys import torus

HALVES: tuple[Dtype, ...] = ("bfloat16", "float16")


def factors(n: int, width: int, length: float = 4.0, seed: int = 0) -> Factors:
    rng = np.random.default_rng(seed)
    return Factors(length * rng.normal(size=(n, width)), rng.normal(size=(n, width)))


def to_nearest(given: Factors, pattern: Pattern, dtype: Dtype) -> Head:
    precision = getattr(torch, dtype)
    keys = torch.from_numpy(given.keys).to(precision)
    queries = with_exact_ratios(given.queries, keys.double().numpy(), pattern) * given.width**0.5
    return Head(torch.from_numpy(queries).to(precision), keys, pattern.causal, "plain")


def ratio_error(head: Head, pattern: Pattern) -> float:
    return certify(head, pattern, Accuracy()).ratio_error


@pytest.mark.parametrize("dtype", DTYPES)
def test_head_has_the_requested_precision_and_notes(dtype: Dtype) -> None:
    pattern = union_of_permutations(16, 2, 0)
    given = factors(16, 4)
    head = rounded(Factors(given.queries, given.keys, {"draws": 3}), pattern, dtype, "frame")
    assert (head.dtype, head.method, head.notes["draws"]) == (dtype, "frame", 3)


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-10), ("float32", 1e-4)])
def test_ratios_are_exact_in_full_precision(dtype: Dtype, error: float) -> None:
    pattern = union_of_permutations(64, 4, 0)
    assert ratio_error(rounded(factors(64, 8), pattern, dtype, "frame"), pattern) < error


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("k", "width"), [(2, 4), (4, 8), (4, 16), (8, 16), (8, 32)])
@pytest.mark.parametrize("seed", [0, 1])
def test_half_precision_is_never_worse_than_to_nearest_and_mostly_far_better(
    dtype: Dtype, k: int, width: int, seed: int
) -> None:
    pattern = union_of_permutations(64, k, seed)
    given = factors(64, width, seed=seed)
    clever = ratio_error(rounded(given, pattern, dtype, "frame"), pattern)
    plain = ratio_error(to_nearest(given, pattern, dtype), pattern)
    assert clever < plain
    if width >= 3 * k:  # twelve free coordinates or more: errors can cancel
        assert clever < plain / 3


def test_every_row_is_within_one_neighbour_of_the_exact_query() -> None:
    pattern = union_of_permutations(64, 4, 0)
    given = factors(64, 12)
    clever, plain = rounded(given, pattern, "bfloat16", "frame"), to_nearest(given, pattern, "bfloat16")
    exact = with_exact_ratios(given.queries, clever.keys.double().numpy(), pattern) * 12**0.5
    distance = np.abs(clever.queries.double().numpy() - exact)
    assert (distance <= np.abs(exact) * 2.0**-7).all()
    assert torch.equal(clever.keys, plain.keys)
    assert not torch.equal(clever.queries, plain.queries)


def test_one_key_per_row_is_rounded_to_nearest() -> None:
    pattern = union_of_permutations(16, 1, 0)
    given = factors(16, 4)
    assert torch.equal(
        rounded(given, pattern, "bfloat16", "frame").queries, to_nearest(given, pattern, "bfloat16").queries
    )


@pytest.mark.parametrize("large", ["queries", "keys"])
def test_float16_does_not_overflow_when_one_side_carries_all_the_length(large: str) -> None:
    pattern = union_of_permutations(16, 2, 0)
    given = factors(16, 4)
    up, down = (2.0**20, 2.0**-20) if large == "queries" else (2.0**-20, 2.0**20)
    head = rounded(Factors(given.queries * up, given.keys * down), pattern, "float16", "frame")
    assert bool(head.queries.isfinite().all() & head.keys.isfinite().all())
    assert ratio_error(head, pattern) == pytest.approx(
        ratio_error(rounded(given, pattern, "float16", "frame"), pattern), rel=0.5
    )


def test_keys_fixed_beforehand_stay_the_same_keys() -> None:
    """A shift is a power of two, and there is none where nothing overflows."""
    given = factors(16, 4)
    kept = rounded(given, union_of_permutations(16, 2, 0), "float16", "frame").keys
    assert torch.equal(kept, torch.from_numpy(given.keys).half())
    shifted = rounded(
        Factors(given.queries * 2.0**14, given.keys), union_of_permutations(16, 2, 0), "float16", "frame"
    ).keys
    factor = float((shifted.double() / kept.double()).median())
    assert np.log2(factor) == int(np.log2(factor)) > 0


@pytest.mark.parametrize("dtype", HALVES)
def test_the_other_neighbour_lies_on_the_other_side(dtype: Dtype) -> None:
    precision = getattr(torch, dtype)
    exact = torch.tensor([[1.001, -1.001, 0.9999, -0.9999, 3e-41, -3e-41, 1e-30, 255.7, -255.7]], dtype=torch.float64)
    nearest = exact.to(precision)
    other = _other_neighbour(exact, nearest).double()
    low, high = torch.minimum(nearest.double(), other), torch.maximum(nearest.double(), other)
    assert bool(((low <= exact) & (exact <= high)).all())
    assert bool(((nearest.double() - exact).abs() <= (other - exact).abs()).all())


def test_the_largest_number_has_no_neighbour_beyond_it() -> None:
    largest = torch.tensor([[torch.finfo(torch.float16).max]], dtype=torch.float64)
    assert bool(_other_neighbour(largest + 1, largest.half()).isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_certificate_is_of_the_rounded_head(dtype: Dtype) -> None:
    pattern, accuracy = union_of_permutations(12, 2, 0), Accuracy(dtype=dtype)
    queries = np.zeros((12, 12))
    queries[pattern.rows, pattern.columns] = 12.0
    factors = Factors(queries, np.eye(12), {"draws": 3})
    head, certificate = certified(factors, pattern, accuracy, "basis")
    expected = rounded(factors, pattern, dtype, "basis")
    assert torch.equal(head.queries, expected.queries)
    assert torch.equal(head.keys, expected.keys)
    assert (head.method, head.dtype, head.notes) == ("basis", dtype, {"draws": 3})
    assert certificate == certify(expected, pattern, accuracy)
    assert certificate.reached


PATTERNS = (
    union_of_permutations(64, 3, seed=0),
    window(64, 4, causal=True),
    sink_window(64, 4, causal=True),
    union_of_permutations(64, 1, seed=1),
)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [16, 21])
def test_rows_that_pass_the_quick_check_are_certified(pattern: Pattern, dtype: Dtype, width: int) -> None:
    accuracy, rows = Accuracy(dtype=dtype), Rows.of([pattern])
    keys = torus(64, width, np.random.default_rng(0))
    support, weights, real = pattern.padded()
    passed = total = 0
    for length in (2.0, 20.0, 60.0, 1e4, 1e6):  # from too much leak to too much rounding error
        pull = np.einsum("rk,rkd->rd", real * (1 + np.log(weights) / length), keys[support])
        head = rounded(Factors(length * pull, keys), pattern, dtype, "here")
        quick, whole = (
            surely_certified(head.queries, head.keys, rows, accuracy),
            certified_rows(head, pattern, accuracy),
        )
        assert not (quick & ~whole).any()
        assert int((~whole).sum()) == certify(head, pattern, accuracy).failing
        passed, total = passed + int(quick.sum()), total + int(whole.sum())
    assert passed >= 0.5 * total > 0


def test_nan_and_infinity_never_pass_the_quick_check() -> None:
    pattern, keys = union_of_permutations(8, 1, seed=0), torch.eye(8)
    queries = torch.full((8, 8), torch.nan)
    assert not surely_certified(queries, keys, Rows.of([pattern]), Accuracy()).any()
    assert not certified_rows(Head(queries, keys, False, "here"), pattern, Accuracy()).any()
