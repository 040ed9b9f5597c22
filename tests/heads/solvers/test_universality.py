"""Proofs of universality: the bounds against all supports, and no proof where a support fails."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import DTYPES, Accuracy, Dtype
from attnscope.heads.certificate import certify
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.universality import curve, queries_of_proof, universal_head, universality, universality_of


def every_row(n: int, k: int, spread: float) -> Pattern:
    """All supports of up to k of n keys, each with every choice of the smallest and the largest weight."""
    rows = [
        (support, weights)
        for size in range(1, min(k, n) + 1)
        for support in itertools.combinations(range(n), size)
        for weights in sorted(set(itertools.product((1.0, spread), repeat=size)))
    ]
    return Pattern.of(
        np.repeat(np.arange(len(rows)), [len(support) for support, _ in rows]),
        np.concatenate([support for support, _ in rows]),
        np.concatenate([weights for _, weights in rows]),
        n=len(rows),
        n_keys=n,
        normalise=True,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 1), (8, 2), (9, 3), (10, 1), (10, 2), (10, 3)]
)
@pytest.mark.parametrize("spread", [1.0, 4.0, 1000.0])
def test_the_proof_holds_for_every_support(n: int, k: int, spread: float, dtype: Dtype) -> None:
    accuracy = Accuracy(dtype=dtype)
    proof = universality(n, k, spread, accuracy)
    assert proof.proved or dtype in ("bfloat16", "float16")  # single and double precision can hold ten keys
    if proof.proved:
        pattern = every_row(n, k, spread)
        found = certify(universal_head(pattern, proof), pattern, accuracy)
        assert found.reached
        assert found.ratio_error <= proof.ratio_error
        assert found.leak <= proof.leak
        assert found.max_logit <= proof.max_logit


@pytest.mark.parametrize(
    ("dtype", "k", "last"),
    [
        ("bfloat16", 1, 35),
        ("float16", 1, 95),
        ("float16", 2, 5),
        ("float32", 1, 5754),
        ("float32", 2, 41),
        ("float32", 3, 20),
    ],
)
def test_the_largest_number_of_keys_that_is_proved(dtype: Dtype, k: int, last: int) -> None:
    accuracy = Accuracy(dtype=dtype)
    proof = universality(last, k, 4.0, accuracy)
    assert proof.proved
    assert not universality(last + 1, k, 4.0, accuracy).proved
    if last < 100:
        pattern = every_row(last, k, 4.0)
        assert certify(universal_head(pattern, proof), pattern, accuracy).reached


@pytest.mark.parametrize(("n", "k"), [(5, 4), (8, 3), (9, 2), (12, 3)])
def test_gap_and_amplitude_are_bounds_over_all_supports_and_the_gap_is_met(n: int, k: int) -> None:
    proof = universality(n, k, 50.0, Accuracy(dtype="float64"))
    pattern = every_row(n, k, 50.0)
    queries = queries_of_proof(pattern, proof)
    angle = 2 * np.pi * np.arange(n) / n
    amplitude = np.hypot(queries[:, 0::2], queries[:, 1::2]).sum(1)
    logits = queries @ curve(n, proof.d).T
    for worst in proof.sizes:
        gaps = [
            np.prod([4 * np.sin((angle[t] - angle[i]) / 2) ** 2 for i in support])
            for support in itertools.combinations(range(n), worst.size)
            for t in set(range(n)) - set(support)
        ]
        assert min(gaps) == pytest.approx(worst.gap)
        here = np.flatnonzero(pattern.counts == worst.size)
        assert amplitude[here].max() <= worst.amplitude * (1 + 1e-12)
        for row in here:
            entries = slice(pattern.starts[row], pattern.starts[row + 1])
            support = pattern.columns[entries]
            exact = logits[row, support] - np.log(pattern.weights[entries])
            assert np.ptp(exact) <= 1e-9 * worst.amplitude
            beside = np.delete(logits[row], support) - logits[row, support].max()
            assert (beside <= -worst.sharpness * worst.gap * (1 - 1e-9)).all()


@given(
    dtype=st.sampled_from(DTYPES),
    n=st.integers(2, 48),
    k=st.integers(1, 4),
    leak=st.floats(1e-6, 0.5),
    ratio_error=st.floats(1e-3, 1.0),
    spread=st.floats(1, 1e6),
    extra=st.integers(0, 3),
    seed=st.integers(0, 10_000),
    causal=st.booleans(),
)
@settings(max_examples=60)
def test_no_row_that_is_drawn_contradicts_a_proof(
    dtype: Dtype, n: int, k: int, leak: float, ratio_error: float, spread: float, extra: int, seed: int, causal: bool
) -> None:
    accuracy = Accuracy(ratio_error, leak, dtype)
    proof = universality(n, k, spread, accuracy, 2 * min(k, n) + extra)
    assume(proof.proved)
    rng = np.random.default_rng(seed)
    rows = n if causal else 60
    supports = []
    for row in range(rows):
        seen = row + 1 if causal else n
        size = int(rng.integers(1, min(k, seen) + 1))
        near = int(rng.integers(size, seen + 1))  # clusters are the worst case
        supports.append(np.sort((rng.integers(0, seen) + rng.permutation(near)[:size]) % seen))
    at = np.concatenate(supports)
    weights = np.where(rng.random(len(at)) < 0.5, 1.0, np.exp(rng.uniform(0, math.log(spread), len(at))))
    counts = [len(support) for support in supports]
    pattern = Pattern.of(
        np.repeat(np.arange(rows), counts), at, weights, n=rows, n_keys=n, causal=causal, normalise=True
    )
    certificate = certify(universal_head(pattern, proof), pattern, accuracy)
    assert certificate.reached
    assert certificate.leak <= proof.leak


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_keys_that_rounding_makes_equal_are_never_proved(dtype: Dtype) -> None:
    """From some n on neighbours are stored as the same key, which no query can tell apart."""
    n = next(
        n
        for n in (2**power for power in range(4, 18))
        if len(torch.unique(torch.from_numpy(curve(n, 2)).to(getattr(torch, dtype)), dim=0)) < n
    )
    for spread, leak in ((1.0, 0.01), (1.0, 0.4)):
        assert not universality(n, 1, spread, Accuracy(leak=leak, dtype=dtype)).proved


def test_only_exact_keys_of_the_curve_are_proved() -> None:
    accuracy = Accuracy()
    keys = torch.from_numpy(curve(12, 4)).float()
    proof = universality_of(keys, 2, 4.0, accuracy)
    assert proof is not None
    assert proof == universality(12, 2, 4.0, accuracy)
    other = keys.clone()
    other[3, 1] = torch.nextafter(other[3, 1], torch.tensor(2.0))
    assert universality_of(other, 2, 4.0, accuracy) is None
    assert universality_of(keys, 3, 4.0, accuracy) is None  # width 6 is needed
    assert universality_of(keys.double(), 2, 4.0, accuracy) is None
    assert universality_of(torch.randn(12, 4), 2, 4.0, accuracy) is None


def test_refusals() -> None:
    accuracy = Accuracy()
    with pytest.raises(RefusalError, match="from width 6 on"):
        universality(12, 3, 4.0, accuracy, width=5)
    with pytest.raises(RefusalError, match="a finite spread"):
        universality(12, 3, 0.5, accuracy)
    proof = universality(8, 2, 4.0, accuracy)
    for n, k, spread in ((9, 2, 4.0), (8, 3, 4.0), (8, 2, 5.0)):
        with pytest.raises(RefusalError, match="up to 2 of 8 keys"):
            universal_head(every_row(n, k, spread), proof)
    with pytest.raises(RefusalError, match="not proved"):
        universal_head(every_row(8, 2, 4.0), universality(8, 2, 4.0, Accuracy(dtype="bfloat16")))


def test_the_page_has_the_largest_numbers_of_keys_that_are_proved() -> None:
    page = (Path(__file__).parents[3] / "docs" / "patterns.md").read_text()
    for dtype in DTYPES:
        counts = [largest(dtype, k) if (dtype, k) != ("float64", 1) else None for k in (1, 2, 3, 4, 6, 8)]
        cells = ("not asked" if count is None else f"{count:,}" for count in counts)
        assert f"| {dtype} | {' | '.join(cells)} |" in page


def largest(dtype: Dtype, k: int) -> int:
    """By doubling and halving: what is proved for n keys is proved for fewer, as gaps are larger."""

    def holds(n: int) -> bool:
        return universality(n, k, 4.0, Accuracy(dtype=dtype)).proved

    good, bad = 1, 2
    while holds(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
