"""Largest margin: exact ratios, valid certificates, keys that do not depend on the pattern, impossible rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.constructions.margin import margin
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.certificate import certify
from attnscope.heads.generate import sink_window, union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import rounded


def built(pattern: Pattern, width: int, seed: int = 0, accuracy: Accuracy | None = None) -> Factors:
    factors = margin(pattern, width, accuracy or Accuracy(), np.random.default_rng(seed))
    assert isinstance(factors, Factors)
    return factors


def ratio_residual(factors: Factors, pattern: Pattern) -> float:
    """Return how far logits on the support are from ln A up to a constant, in the worst row."""
    logits = (factors.queries[pattern.rows] * factors.keys[pattern.columns]).sum(1) - np.log(pattern.weights)
    highest = np.maximum.reduceat(logits, pattern.starts[:-1])
    return float((highest - np.minimum.reduceat(logits, pattern.starts[:-1])).max())


@pytest.mark.parametrize(("n", "k", "width"), [(256, 1, 2), (256, 2, 6), (256, 4, 13), (256, 8, 28)])
def test_rows_of_k_keys_are_certified_in_width_3k_and_a_few_in_single_precision(n: int, k: int, width: int) -> None:
    pattern = union_of_permutations(n, k, seed=0)
    factors = built(pattern, width)
    certificate = certify(rounded(factors, pattern, "float32", "margin"), pattern, Accuracy())
    assert certificate.reached
    assert factors.notes["rows"] == {"separated": n, "inseparable": 0, "too long": 0, "stopped": 0}
    assert factors.notes["converged"] is True
    assert factors.notes["duality_gap"] < 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_ratios_are_exact_in_double_precision(causal: bool) -> None:
    for pattern in (union_of_permutations(64, 3, seed=1), window(64, 4, causal=causal, weights="random")):
        factors = built(pattern, 24)
        size = np.linalg.norm(factors.queries, axis=1).max()
        assert ratio_residual(factors, pattern) <= 1e-10 * max(1, size / 100)


@given(seed=st.integers(0, 1000))
def test_ratios_are_exact_whatever_the_pattern(seed: int) -> None:
    assert (
        ratio_residual(built(union_of_permutations(24, 3, seed=seed), 16), union_of_permutations(24, 3, seed)) < 1e-10
    )


def test_keys_are_the_same_bits_for_every_pattern() -> None:
    patterns = [union_of_permutations(64, 3, seed=s) for s in range(3)] + [
        window(64, 2),
        sink_window(64, 4, causal=True),
    ]
    keys = {built(pattern, 16, seed=5).keys.tobytes() for pattern in patterns}
    assert len(keys) == 1
    assert built(patterns[0], 16, seed=6).keys.tobytes() not in keys


def test_same_generator_same_head() -> None:
    pattern = union_of_permutations(48, 3, seed=0)
    np.testing.assert_array_equal(built(pattern, 14, seed=2).queries, built(pattern, 14, seed=2).queries)


def test_causal_rows_of_different_size_are_certified_and_hidden_keys_are_free() -> None:
    pattern = sink_window(128, 4, causal=True)
    assert len(set(pattern.counts.tolist())) > 1
    factors = built(pattern, 16)
    certificate = certify(rounded(factors, pattern, "float32", "margin"), pattern, Accuracy())
    assert certificate.reached
    unmasked = factors.queries @ factors.keys.T
    hidden = np.triu(np.ones_like(unmasked, dtype=bool), 1)
    on = unmasked[pattern.rows, pattern.columns].reshape(-1)
    assert (unmasked[hidden].max()) > on.min()  # hidden keys did not lengthen the queries


def test_rectangular_patterns_work() -> None:
    rng = np.random.default_rng(0)
    columns = np.concatenate([rng.choice(90, 2, replace=False) for _ in range(20)])
    pattern = Pattern.of(np.repeat(np.arange(20), 2), columns, np.full(40, 0.5), n=20, n_keys=90)
    assert certify(rounded(built(pattern, 8), pattern, "float32", "margin"), pattern, Accuracy()).reached


def test_rows_that_cannot_be_separated_are_named_and_still_get_a_query() -> None:
    pattern = union_of_permutations(64, 4, seed=0)
    factors = built(pattern, 5)
    notes = factors.notes
    assert notes["rows"]["inseparable"] > 32
    assert len(notes["inseparable_rows"]) == 20
    assert notes["leaking"] >= notes["rows"]["inseparable"]
    assert np.isfinite(factors.queries).all()
    certificate = certify(rounded(factors, pattern, "float32", "margin"), pattern, Accuracy())
    assert not certificate.reached
    assert set(notes["inseparable_rows"][:5]) <= set(certificate.failing_rows)
    assert certificate.ratio_error <= 0.1  # even there the ratios are right


def test_half_precision_gets_short_queries() -> None:
    pattern, accuracy = union_of_permutations(64, 2, seed=0), Accuracy(dtype="bfloat16")
    factors = built(pattern, 40, accuracy=accuracy)
    assert np.linalg.norm(factors.queries, axis=1).max() < 60
    assert certify(rounded(factors, pattern, "bfloat16", "margin"), pattern, accuracy).reached


def test_a_width_too_small_for_the_ratios_is_refused() -> None:
    with pytest.raises(RefusalError, match="width of 7 or more"):
        built(union_of_permutations(32, 8, seed=0), 6)


def test_progress_is_reported() -> None:
    told: list[tuple[str, int, int]] = []
    margin(window(32, 2), 8, Accuracy(), np.random.default_rng(0), lambda *said: told.append(said))
    assert told[-1] == ("queries", 32, 32)
