"""Joint optimisation: gradients against autograd, small cases that must be certified, and odd shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.constructions.joint import joint
from attnscope.heads.accuracy import Accuracy, Factors, with_exact_ratios
from attnscope.heads.certificate import certify
from attnscope.heads.facts import Certificate
from attnscope.heads.generate import generate, union_of_permutations
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import rounded
from attnscope.heads.solvers.descent import Adam, Target, onto_ratios, slopes


def ragged(n: int = 12, n_keys: int = 9, causal: bool = False, seed: int = 0) -> Pattern:
    """Rows of one to four keys, weights within a factor 4, rectangular."""
    rng = np.random.default_rng(seed)
    entries = []
    for row in range(n):
        seen = min(row + 1, n_keys) if causal else n_keys
        for key in rng.choice(seen, size=min(seen, int(rng.integers(1, 5))), replace=False):
            entries.append((row, key, rng.uniform(1, 4)))
    rows, columns, weights = zip(*entries, strict=True)
    return Pattern.of(
        np.array(rows), np.array(columns), np.array(weights), n=n, n_keys=n_keys, causal=causal, normalise=True
    )


def compiled(pattern: Pattern, width: int, accuracy: Accuracy | None = None, seed: int = 0) -> tuple[Head, Certificate]:
    accuracy = accuracy or Accuracy()
    head = rounded(joint(pattern, width, accuracy, np.random.default_rng(seed)), pattern, accuracy.dtype, "joint")
    return head, certify(head, pattern, accuracy)


def height(
    queries: torch.Tensor,
    keys: torch.Tensor,
    pattern: Pattern,
    urgency: torch.Tensor,
    forgiven: float,
    stiffness: float,
) -> torch.Tensor:
    """The height of `solvers.descent` from dense matrices: the integral of z / (z + f) over ln U, plus the ratios.

    With z = U / (1 + U) the integrand is U / (f + (1 + f) U) d(ln U), whose integral is ln(f + (1 + f) U) / (1 + f).
    """
    on = torch.from_numpy(pattern.dense() > 0)
    hidden = torch.zeros_like(on)
    if pattern.causal:
        hidden = torch.arange(pattern.n_keys) > torch.arange(pattern.n)[:, None]
    logits = queries @ keys.T
    level = logits.masked_fill(~on, -torch.inf).logsumexp(1, keepdim=True)
    off = (logits - level).exp().masked_fill(on | hidden, 0).sum(1)
    pulled = ((forgiven + (1 + forgiven) * off).log() / (1 + forgiven) * urgency).sum()
    residual = (logits - torch.from_numpy(pattern.dense()).clamp_min(1e-300).log()) * on
    residual = (residual - residual.sum(1, keepdim=True) / on.sum(1, keepdim=True)) * on
    return pulled + stiffness / 2 * residual.square().sum()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(12, 9), (9, 12), (11, 11)])
@pytest.mark.parametrize("block", [2**19, 25])
def test_slopes_are_those_of_automatic_differentiation(
    causal: bool, shape: tuple[int, int], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscope.heads.solvers.descent.BLOCK_ELEMENTS", block)
    pattern = ragged(*shape, causal=causal)
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(pattern.n, 3, generator=generator, dtype=torch.float64).requires_grad_()
    keys = torch.randn(pattern.n_keys, 3, generator=generator, dtype=torch.float64).requires_grad_()
    urgency = 1 + torch.rand(pattern.n, generator=generator, dtype=torch.float64)
    height(queries, keys, pattern, urgency, 0.004, 0.3).backward()
    with torch.no_grad():
        found = slopes(queries, keys, Target.of(pattern, torch.float64), urgency, forgiven=0.004, stiffness=0.3)
    torch.testing.assert_close(found.queries, queries.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.keys, keys.grad, rtol=1e-10, atol=1e-12)


def test_leaks_of_a_pass_are_those_of_the_certificate() -> None:
    pattern = ragged(causal=True)
    generator = torch.Generator().manual_seed(2)
    queries, keys = torch.randn(12, 4, generator=generator), torch.randn(9, 4, generator=generator)
    leaks = slopes(queries, keys, Target.of(pattern), torch.ones(12), forgiven=0.004, stiffness=0.1).leaks
    head = Head(queries.double() * 2, keys.double(), True, "joint")
    assert float(leaks.max()) == pytest.approx(certify(head, pattern, Accuracy()).leak, rel=1e-5)


def test_projection_agrees_with_the_pseudo_inverse() -> None:
    pattern = ragged()
    rng = np.random.default_rng(3)
    queries, keys = rng.normal(size=(12, 6)), rng.normal(size=(9, 6))
    fast = onto_ratios(torch.from_numpy(queries), torch.from_numpy(keys), Target.of(pattern, torch.float64))
    np.testing.assert_allclose(fast.numpy(), with_exact_ratios(queries, keys, pattern), rtol=1e-8, atol=1e-9)


def test_adam_is_the_adam_of_torch() -> None:
    values = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    twin = values.clone().requires_grad_()
    ours, theirs = Adam(values), torch.optim.Adam([twin], lr=0.1, betas=(0.9, 0.98), eps=1e-12)
    for step in range(1, 6):
        slope = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64) * step
        ours.step(slope, 0.1)
        twin.grad = slope
        theirs.step()
    torch.testing.assert_close(values, twin.detach(), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("n", "k", "width"), [(64, 1, 2), (64, 2, 4), (64, 4, 8), (64, 8, 12), (256, 4, 10)])
def test_small_unions_of_permutations_are_reached(n: int, k: int, width: int) -> None:
    head, certificate = compiled(union_of_permutations(n, k, 0), width)
    assert certificate.reached, certificate
    assert head.width == width
    assert certificate.ratio_error < 1e-3


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 16), ("float16", 12)])
def test_half_precision_heads_are_certified(dtype: str, width: int) -> None:
    pattern = union_of_permutations(256, 4, 0)
    assert compiled(pattern, width, Accuracy(dtype=dtype))[1].reached  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["window", "strided", "sink_window"])
@pytest.mark.parametrize(("k", "width"), [(2, 5), (4, 6)])
@pytest.mark.parametrize("causal", [False, True])
def test_structured_patterns_are_reached(kind: str, k: int, width: int, causal: bool) -> None:
    assert compiled(generate(kind, 64, k, causal=causal), width)[1].reached


def test_one_key_per_row_needs_width_two_whatever_the_size() -> None:
    head, certificate = compiled(union_of_permutations(4096, 1, 0), 2)
    assert certificate.reached
    assert head.notes["iterations"] == 0


@pytest.mark.parametrize("targets", [1, 2, 3, 50])
@pytest.mark.parametrize("causal", [False, True])
def test_one_key_per_row_with_shared_and_unused_keys(targets: int, causal: bool) -> None:
    rows = np.arange(60)
    columns = np.minimum(np.random.default_rng(0).integers(targets, size=60), rows)
    pattern = Pattern.of(rows, columns, np.ones(60), n=60, n_keys=100, causal=causal)
    assert compiled(pattern, 2)[1].reached


def test_same_seed_same_head_and_another_seed_another() -> None:
    pattern = union_of_permutations(48, 3, 0)
    once, again, other = (compiled(pattern, 7, seed=seed)[0] for seed in (5, 5, 6))
    assert torch.equal(once.queries, again.queries)
    assert torch.equal(once.keys, again.keys)
    assert not torch.equal(once.keys, other.keys)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**16))
def test_a_permuted_pattern_is_realised_by_the_permuted_head(seed: int) -> None:
    pattern = union_of_permutations(32, 2, 1)
    head, certificate = compiled(pattern, 5)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(32), rng.permutation(32)  # old row i becomes row rows[i]
    moved = Pattern.of(rows[pattern.rows], columns[pattern.columns], pattern.weights, n=32)
    queries, keys = torch.empty_like(head.queries), torch.empty_like(head.keys)
    queries[torch.from_numpy(rows)], keys[torch.from_numpy(columns)] = head.queries, head.keys
    again = certify(Head(queries, keys, False, "joint"), moved, Accuracy())
    assert again.reached == certificate.reached
    assert again.leak == pytest.approx(certificate.leak, rel=1e-3)
    assert again.ratio_error == pytest.approx(certificate.ratio_error, abs=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (40, 40)])
def test_rectangular_ragged_and_causal(causal: bool, shape: tuple[int, int]) -> None:
    head, certificate = compiled(ragged(*shape, causal=causal), 9)
    assert certificate.reached
    assert (head.queries.shape, head.keys.shape) == ((shape[0], 9), (shape[1], 9))


def test_causal_needs_less_than_both_ways() -> None:
    """Entries above the diagonal are masked, so a width that is too small for the full pattern may be enough."""
    pattern = generate("union_of_permutations", 64, 4, causal=True)
    both_ways = Pattern(pattern.starts, pattern.columns, pattern.weights, pattern.n_keys)
    assert compiled(pattern, 8)[1].failing <= compiled(both_ways, 8)[1].failing


def test_rows_with_nothing_to_leak_onto() -> None:
    full = Pattern.of(np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4), np.ones(16), n=4, normalise=True)
    certificate = compiled(full, 3)[1]
    assert certificate.reached
    assert certificate.leak == 0


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_smallest_patterns(n: int, width: int) -> None:
    pattern = Pattern.of(np.arange(n), np.arange(n)[::-1].copy(), np.ones(n), n=n)
    assert compiled(pattern, width)[1].reached


def test_a_width_too_small_is_answered_with_a_best_effort() -> None:
    factors = joint(union_of_permutations(64, 8, 0), 1, Accuracy(), np.random.default_rng(0))
    assert isinstance(factors, Factors)
    assert factors.width == 1
    assert factors.notes["converged"] is False
    assert np.isfinite(factors.queries).all()


def test_joint_reports_progress() -> None:
    said: list[tuple[str, int, int]] = []
    joint(union_of_permutations(32, 2, 0), 4, Accuracy(), np.random.default_rng(0), lambda *words: said.append(words))
    assert said
    assert all(0 < done <= total for _, done, total in said)
