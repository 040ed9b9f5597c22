"""Interpolation on a frame: exact products, the offset that the leak needs, and the bound by coherence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.constructions.frame import frame
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.certificate import certify
from attnscope.heads.generate import sink_window, union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import rounded
from attnscope.heads.solvers.interpolation import interpolated, interpolation
from attnscope.heads.solvers.keys import make_keys


def built(pattern: Pattern, width: int, seed: int = 0) -> Factors:
    factors = frame(pattern, width, Accuracy(), np.random.default_rng(seed))
    assert isinstance(factors, Factors)
    return factors


def test_base_and_direction_are_the_pseudo_inverse_row_by_row() -> None:
    pattern = sink_window(40, 4, causal=True, weights="random")
    keys = make_keys(40, 12, "gaussian", np.random.default_rng(0), separated=False, dtype="float64").array
    base, direction = interpolation(pattern, keys, np.arange(40))
    for row in range(40):
        entries = slice(int(pattern.starts[row]), int(pattern.starts[row + 1]))
        inverse = np.linalg.pinv(keys[pattern.columns[entries]])
        np.testing.assert_allclose(base[row], inverse @ np.log(pattern.weights[entries]), atol=1e-10)
        np.testing.assert_allclose(direction[row], inverse @ np.ones(entries.stop - entries.start), atol=1e-10)


@given(k=st.integers(1, 5), seed=st.integers(0, 1000), causal=st.booleans())
def test_ratios_are_exact_and_the_row_has_its_offset(k: int, seed: int, causal: bool) -> None:
    pattern = window(24, k, causal=True, weights="random") if causal else union_of_permutations(24, k, seed=seed)
    factors = built(pattern, 16, seed % 3)
    offsets = (factors.queries[pattern.rows] * factors.keys[pattern.columns]).sum(1) - np.log(pattern.weights)
    spread = np.maximum.reduceat(offsets, pattern.starts[:-1]) - np.minimum.reduceat(offsets, pattern.starts[:-1])
    assert spread.max() <= 1e-10 * max(1.0, np.linalg.norm(factors.queries, axis=1).max() / 100)


def test_the_offset_is_the_smallest_that_leaks_half_of_the_limit() -> None:
    pattern = union_of_permutations(128, 3, seed=0)
    factors = built(pattern, 64)
    assert factors.notes["leaking"] == 0
    certificate = certify(rounded(factors, pattern, "float64", "frame"), pattern, Accuracy(dtype="float64"))
    assert certificate.reached
    assert certificate.leak == pytest.approx(0.005, rel=2e-3)
    assert certificate.mean_leak == pytest.approx(0.005, rel=2e-3)  # every row just meets the goal
    assert certificate.ratio_error < 1e-10


def test_coherence_below_one_over_2k_minus_1_serves_every_support() -> None:
    """Gershgorin: with mu < 1 / (2k - 1) no other key reaches the support, whichever keys it is made of."""
    keys = make_keys(49, 49, "reed_solomon", np.random.default_rng(0), separated=False, dtype="float32")
    assert keys.coherence == pytest.approx(1 / 7)
    for seed in range(3):
        pattern = union_of_permutations(49, 3, seed=seed)  # 1/7 < 1/5
        factors = interpolated(pattern, keys, Accuracy())
        assert factors.notes["leaking"] == 0
        assert certify(rounded(factors, pattern, "float32", "frame"), pattern, Accuracy()).reached


def test_keys_are_the_same_bits_for_every_pattern_and_reported() -> None:
    patterns = [union_of_permutations(64, 2, seed=0), union_of_permutations(64, 3, seed=1), window(64, 4, causal=True)]
    factors = [built(pattern, 20, seed=1) for pattern in patterns]
    assert len({f.keys.tobytes() for f in factors}) == 1
    notes = factors[0].notes
    assert notes["keys"] == "low_coherence"
    assert notes["welch_bound"] <= notes["coherence"] < 1
    np.testing.assert_array_equal(factors[0].queries, built(patterns[0], 20, seed=1).queries)


def test_orthonormal_keys_give_zero_logits_off_the_support() -> None:
    pattern = union_of_permutations(16, 4, seed=0)
    factors = built(pattern, 16)
    logits = factors.queries @ factors.keys.T
    off = np.ones_like(logits, dtype=bool)
    off[pattern.rows, pattern.columns] = False
    np.testing.assert_allclose(logits[off], 0, atol=1e-9)


def test_rows_that_leak_at_any_scale_are_listed_at_their_best_scale() -> None:
    pattern = union_of_permutations(96, 4, seed=0)
    factors = built(pattern, 10)
    assert factors.notes["leaking"] > 48
    row = int(factors.notes["leaking_rows"][0])
    base, direction = interpolation(pattern, factors.keys, np.array([row]))
    support = pattern.columns[pattern.starts[row] : pattern.starts[row + 1]]

    def leak(query: np.ndarray) -> float:
        shares = np.exp(factors.keys @ query - (factors.keys @ query).max())
        return float(1 - shares[support].sum() / shares.sum())

    least = min(leak(base[0] + scale * direction[0]) for scale in np.linspace(0, 60, 2000))
    assert leak(factors.queries[row]) <= least + 1e-3


def test_a_row_that_sees_its_support_alone_is_free() -> None:
    pattern = window(6, 6, causal=True, weights="random")
    assert pattern.free
    factors = built(pattern, 6)
    certificate = certify(rounded(factors, pattern, "float64", "frame"), pattern, Accuracy(dtype="float64"))
    assert certificate.leak == 0
    assert certificate.ratio_error < 1e-10


def test_a_width_too_small_for_the_ratios_is_refused() -> None:
    with pytest.raises(RefusalError, match="width of 4 or more"):
        built(union_of_permutations(32, 5, seed=0), 3)
