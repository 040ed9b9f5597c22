"""The paper's construction: target logits, the split, the theorem's width and guarantee, and the row-sparse variant."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnscope.constructions import random_projection as paper
from attnscope.constructions.random_projection import random_projection, success_rate, theorem_for
from attnscope.constructions.random_projection_rows import random_projection_rows
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certify
from attnscope.heads.generate import generate, sink_window, union_of_permutations, window
from attnscope.heads.rounding import rounded
from attnscope.heads.solvers import projection
from attnscope.heads.solvers.projection import gaussian, row_zero_ratios, target
from attnscope.heads.solvers.theorem import theorem_width, theorem_width_rows

SOME = [union_of_permutations(12, 3, 0), window(9, 4, causal=True), sink_window(10, 3), generate("block", 12, 4)]


def softmax(logits: np.ndarray, causal: bool) -> np.ndarray:
    logits = np.where(np.triu(np.ones_like(logits), 1) > 0, -np.inf, logits) if causal else logits
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(share / share.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("pattern", SOME, ids=lambda p: p.name)
def test_target_logits_tolerate_any_error_of_delta(pattern) -> None:
    """Unperturbed logits are exact. With every logit moved by delta in the worst direction, e1, e2 and the leak still
    hold.
    """
    accuracy = Accuracy()
    wanted, dense = target(pattern, accuracy), pattern.dense()
    logits, delta = wanted.logits.toarray(), math.log(1.1) / 2
    exact = softmax(logits, pattern.causal)
    scale = (exact / np.where(dense > 0, dense, 1))[dense > 0]
    assert np.allclose(scale, np.repeat(scale[pattern.starts[:-1]], pattern.counts))
    for seed in range(5):
        push = delta * np.random.default_rng(seed).choice([-1, 1], logits.shape)
        pushed = softmax(logits + (np.where(dense > 0, -delta, delta) if seed == 0 else push), pattern.causal)
        assert (pushed * (dense == 0)).sum(axis=1).max() <= accuracy.leak * (1 + 1e-12)
        for row, weights, most in zip(pushed, dense, row_zero_ratios(pattern, accuracy.leak), strict=True):
            kept = row[weights > 0] / weights[weights > 0]
            assert kept.max() / kept.min() <= 1.1 * (1 + 1e-12)
            assert row[weights == 0].max(initial=0) <= most * row[weights > 0].min() * (1 + 1e-12)


@pytest.mark.parametrize("pattern", SOME, ids=lambda p: p.name)
def test_the_split_multiplies_back_and_keeps_its_norms(pattern) -> None:
    wanted = target(pattern, Accuracy())
    split = paper.Split(wanted)
    queries, keys = split.project(np.eye(split.rank))
    assert np.allclose(queries @ keys.T, wanted.logits.toarray(), atol=1e-10)
    norm = np.linalg.norm(wanted.logits.toarray(), 2)
    assert split.norm == pytest.approx(norm)
    assert norm <= math.sqrt(pattern.k * pattern.k_columns) * wanted.largest * (1 + 1e-12)
    assert max((queries**2).sum(axis=1).max(), (keys**2).sum(axis=1).max()) <= norm * (1 + 1e-9)


def test_disconnected_parts_are_decomposed_separately() -> None:
    blocks = paper._blocks(target(generate("block", 12, 4), Accuracy()).logits)
    assert sorted((len(rows), len(columns)) for rows, columns in blocks) == [(4, 4)] * 3
    assert len(paper._blocks(target(union_of_permutations(50, 1, 0), Accuracy()).logits)) == 50


def test_the_theorem_by_hand() -> None:
    delta, beta = math.log(1.1) / 2, math.log(4 / 1e-4) + math.log(1.1)
    t = delta / (3 * beta)
    found = theorem_width(100, 3, 4.0, 0.1, 1e-4)
    assert found.width == math.ceil(4 * math.log(8 * 100**2) / (t**2 - t**3))
    assert (found.success_at_least, found.draws_at_most) == (0.5, 2.0)
    assert 100**2 * 4 * math.exp(-found.width * (t**2 - t**3) / 4) <= 0.5
    ratio = found.width / theorem_width_rows(100, 3, 4.0, 0.1, 1e-4).width
    assert ratio == pytest.approx(3, rel=0.01)  # grows with k, not with k^2
    widths = [theorem_width(n, 2, 4.0, 0.1, 1e-4).width for n in (100, 10_000, 1_000_000)]
    assert np.diff(widths)[0] == pytest.approx(np.diff(widths)[1], abs=2)  # logarithmic in n


def test_a_draw_at_the_theorems_width_meets_both_conditions_at_least_every_other_time() -> None:
    accuracy = Accuracy(ratio_error=0.5, leak=0.05)
    for pattern in (union_of_permutations(24, 2, 0), window(24, 2, causal=True)):
        width = theorem_for(pattern, accuracy).width
        assert success_rate(pattern, width, accuracy, 20, np.random.default_rng(0)) >= 0.5
        assert success_rate(pattern, width // 100, accuracy, 5, np.random.default_rng(0)) == 0


@pytest.mark.parametrize("width", [3, 40])
def test_projections_have_the_moments_of_a_gaussian(width: int) -> None:
    """Below and above the rank: E G G^T = I and var <g_i, g_j> = 1/d, 2/d on the diagonal."""
    rng = np.random.default_rng(0)
    grams = np.stack([g @ g.T for g in (gaussian(5, width, rng) for _ in range(4000))])
    assert gaussian(5, width, rng).shape == (5, min(5, width))
    assert np.allclose(grams.mean(axis=0), np.eye(5), atol=6 / math.sqrt(4000 * width))
    assert np.allclose(grams.var(axis=0), (1 + np.eye(5)) / width, rtol=0.2)


@pytest.mark.parametrize("build", [random_projection, random_projection_rows], ids=lambda c: c.name)
def test_finished_heads_pass_far_below_the_theorem(build) -> None:
    pattern, accuracy = union_of_permutations(64, 2, 0), Accuracy()
    factors = build(pattern, 48, accuracy, np.random.default_rng(0))
    assert certify(rounded(factors, pattern, "float32", build.name), pattern, accuracy).reached
    notes = factors.notes
    assert notes["passed"]
    assert 1 <= notes["draws"] <= projection.DRAWS
    assert notes["theorem_width"] > 1_000_000
    assert notes["theorem_beyond_n"]
    assert "width n" in notes["theorem_says"]
    assert not notes["passed_as_drawn"]


def test_too_narrow_a_head_is_drawn_ten_times_and_the_best_is_kept() -> None:
    seen: list[int] = []
    pattern = union_of_permutations(32, 2, 0)
    factors = random_projection_rows(
        pattern, 4, Accuracy(), np.random.default_rng(0), lambda stage, done, total: seen.append(done)
    )
    assert seen == list(range(1, projection.DRAWS + 1))
    assert factors.notes["draws"] == projection.DRAWS
    assert not factors.notes["passed"]


def test_widths_beyond_n_are_drawn_small_and_returned_whole() -> None:
    pattern = union_of_permutations(8, 2, 0)
    factors = random_projection(pattern, 5000, Accuracy(), np.random.default_rng(0))
    assert factors.queries.shape == factors.keys.shape == (8, 5000)
    assert not factors.queries[:, 8:].any()
    assert factors.notes["passed"]


def test_unsuitable_patterns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, rng = union_of_permutations(8, 2, 0), np.random.default_rng(0)
    with pytest.raises(RefusalError, match="GB: ask for a width of at most 33554432"):
        random_projection_rows(pattern, 10**9, Accuracy(), rng)
    monkeypatch.setattr(paper, "LARGEST_BLOCK", 4)
    with pytest.raises(RefusalError, match="use random_projection_rows"):
        random_projection(window(8, 2), 4, Accuracy(), rng)
