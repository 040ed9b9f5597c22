"""Singular values from products, eigenvalues of W_Q W_K^T from factors, quadratic forms of SwiGLU."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.matrix.spectrum import (
    dominance,
    form_norms,
    incoherent_columns,
    leading_singular_values,
    orthonormal,
    product_norm,
    qk_spectrum,
    quadratic_form,
    without_silu,
)


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _leading(matrix: torch.Tensor, count: int = 2, block: int = 4, steps: int = 8) -> torch.Tensor:
    start = incoherent_columns(matrix.shape[-1], block).to(matrix).expand(*matrix.shape[:-2], -1, -1)
    return leading_singular_values(lambda x: matrix @ x, lambda y: matrix.mT @ y, start, count, steps)


def test_leading_values_solved_by_hand():
    identity = torch.eye(50, dtype=torch.float64)[None]
    assert _leading(identity)[0].tolist() == pytest.approx([1.0, 1.0])
    uniform = torch.full((1, 50, 50), 1 / 50, dtype=torch.float64)
    assert _leading(uniform)[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    rank_one = torch.arange(1.0, 6.0)[:, None] @ torch.tensor([[3.0, 4.0]])
    assert _leading(rank_one.double()[None])[0].tolist() == pytest.approx([5 * math.sqrt(55), 0.0], abs=1e-9)
    assert _leading(torch.full((1, 1, 1), 2.0))[0].tolist() == [2.0, 0.0]


@given(st.integers(0, 2**31 - 1), st.integers(1, 24), st.integers(1, 24))
def test_small_matrices_are_exact(seed: int, rows: int, columns: int):
    matrix = _random(seed, 2, 3, rows, columns)
    exact = torch.nn.functional.pad(torch.linalg.svdvals(matrix), (0, 1))[..., :2]
    torch.testing.assert_close(_leading(matrix), exact, rtol=1e-9, atol=1e-9)


@given(st.integers(0, 2**31 - 1))
def test_leading_values_of_large_matrices_are_approached_from_below(seed: int):
    matrix = _random(seed, 1, 200, 150)
    exact = torch.linalg.svdvals(matrix)[..., :2]
    found = _leading(matrix)
    assert (found <= exact * (1 + 1e-12)).all()
    torch.testing.assert_close(found, exact, rtol=2e-2, atol=0.0)
    torch.testing.assert_close(_leading(matrix, steps=20), exact, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("n", "sigma_1", "sigma_2"), [(64, 1.0078, 2.09), (256, 1.0019, 2.13), (1024, 1.0005, 2.04)])
def test_random_softmax_patterns_have_the_published_gap(n: int, sigma_1: float, sigma_2: float):
    logits = torch.stack([_random(seed, n, n) for seed in range(8)])
    draws = torch.softmax(math.sqrt(math.log(2)) * logits, dim=-1)
    found = _leading(draws, steps=20)
    torch.testing.assert_close(found, torch.linalg.svdvals(draws)[:, :2], rtol=1e-3, atol=0.0)
    # Entries are lognormal, so sigma_2 varies from draw to draw (by 0.19, 0.14, 0.07 at the three sizes). The
    # published figures must lie where one more draw would, within two standard deviations.
    scale = torch.tensor([1.0, math.sqrt(n)], dtype=torch.float64)
    mean, spread = (scale * found).mean(dim=0), (scale * found).std(dim=0) * math.sqrt(1 + 1 / 8)
    rounding = torch.tensor([5e-5, 5e-3], dtype=torch.float64)  # of the published digits
    published = torch.tensor([sigma_1, sigma_2], dtype=torch.float64)
    assert ((mean - published).abs() <= 2 * spread + rounding).all()


def test_a_matrix_with_nan_gives_nan_and_its_neighbour_does_not():
    matrix = torch.eye(40, dtype=torch.float64).repeat(2, 1, 1)
    matrix[0, 3, 4] = torch.nan
    values = _leading(matrix)
    assert values[0].isnan().all()
    assert values[1].tolist() == pytest.approx([1.0, 1.0])


def test_start_rows_do_not_depend_on_how_many_there_are():
    assert torch.equal(incoherent_columns(10, 4), incoherent_columns(30, 4)[:10])
    basis = orthonormal(incoherent_columns(64, 4))
    torch.testing.assert_close(basis.mT @ basis, torch.eye(4, dtype=torch.float64))


@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9))
def test_product_norm_equals_the_norm_of_the_product(seed: int, inner: int, outer: int, other: int):
    left, right = _random(seed, 2, outer, inner), _random(seed + 1, 2, inner, other)
    torch.testing.assert_close(product_norm(left, right), torch.linalg.matrix_norm(left @ right, ord=2))
    bound = torch.linalg.matrix_norm(left, ord=2) * torch.linalg.matrix_norm(right, ord=2)
    assert (product_norm(left, right) <= bound * (1 + 1e-12)).all()


def test_product_norm_is_nan_for_a_head_that_is_not_finite_and_only_for_that_one():
    left, right = _random(0, 2, 5, 3), _random(1, 2, 3, 4)
    whole = product_norm(left, right)
    left[0, 2, 1] = torch.nan
    norms = product_norm(left, right)
    assert norms[0].isnan()
    assert norms[1] == whole[1]


def test_qk_spectrum_solved_by_hand():
    identity = torch.eye(4, dtype=torch.float64)[None]
    mean, variance, eta = qk_spectrum(3 * identity, identity)
    assert (mean.item(), variance.item(), eta.item()) == pytest.approx((3.0, 0.0, 1.0))
    turn = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]], dtype=torch.float64)  # eigenvalues +-i
    mean, variance, eta = qk_spectrum(turn, torch.eye(2, dtype=torch.float64)[None])
    assert (mean.item(), variance.item(), eta.item()) == pytest.approx((0.0, -1.0, 0.0))
    first = torch.tensor([[[1.0], [0.0], [0.0], [0.0]]])  # one head of rank 1 in width 4: eta = sqrt(1/4)
    mean, variance, eta = qk_spectrum(first, first)
    assert (mean.item(), variance.item(), eta.item()) == pytest.approx((0.25, 0.1875, 0.5))


@given(st.integers(0, 2**31 - 1), st.integers(1, 5), st.integers(5, 12))
def test_qk_spectrum_against_eigenvalues(seed: int, dim: int, width: int):
    query, key = _random(seed, 3, width, dim), _random(seed + 1, 3, width, dim)
    mean, variance, eta = qk_spectrum(query, key)
    eigenvalues = torch.linalg.eigvals(query @ key.mT)
    expected = eigenvalues.mean(dim=-1)
    torch.testing.assert_close(mean, expected.real)
    torch.testing.assert_close(variance, (eigenvalues.square().mean(dim=-1) - expected.square()).real)
    assert (eta.abs() <= math.sqrt(dim / width) + 1e-12).all()
    spin = torch.linalg.qr(_random(seed, dim, dim)).Q  # turning both factors alike changes nothing
    for before, after in zip((mean, variance, eta), qk_spectrum(query @ spin, key @ spin), strict=True):
        torch.testing.assert_close(before, after)


def test_localisation_rises_with_eta_as_published():
    """At ||W||_F^2 = d a larger eta means more attention on the own token and less entropy."""
    d, n = 64, 128
    own, entropies, measured_eta = [], [], []
    for eta in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        noise = _random(0, d, d)
        noise -= torch.eye(d, dtype=torch.float64) * noise.diagonal().mean()
        weight = eta * torch.eye(d, dtype=torch.float64) + math.sqrt(1 - eta**2) * noise * math.sqrt(d) / noise.norm()
        measured_eta.append(qk_spectrum(weight[None], torch.eye(d, dtype=torch.float64)[None])[2].item())
        tokens = _random(1, 8, n, d)
        pattern = torch.softmax(tokens @ weight @ tokens.mT / math.sqrt(d), dim=-1)
        own.append(pattern.diagonal(dim1=-2, dim2=-1).mean().item())
        entropies.append(torch.special.entr(pattern).sum(dim=-1).mean().item())
    assert measured_eta == pytest.approx([0.0, 0.25, 0.5, 0.75, 0.9, 1.0], abs=1e-12)
    assert own == sorted(own)
    assert entropies == sorted(entropies, reverse=True)
    assert own == pytest.approx([0.011, 0.068, 0.263, 0.610, 0.806, 0.889], abs=0.05)
    assert entropies == pytest.approx([4.36, 4.26, 3.69, 2.27, 1.27, 0.78], abs=0.2)


EXACT = 1e-10  # sums of at most 7 x 11 x 7 products of size one in float64: some 1e-13


@pytest.fixture
def weights() -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(11, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    return gate, up, torch.randn(5, 11, generator=rng, dtype=torch.float64)


def test_the_form_gives_what_the_module_gives(weights: tuple[Tensor, Tensor, Tensor]) -> None:
    gate, up, down = weights
    tokens = torch.randn(3, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    by_form = torch.stack([((tokens @ quadratic_form(gate, up, row)) * tokens).sum(-1) for row in down], -1)
    assert (by_form - without_silu(tokens, gate, up, down)).abs().max() < EXACT


def test_norms_without_forms_are_those_of_the_forms(weights: tuple[Tensor, Tensor, Tensor]) -> None:
    gate, up, down = weights
    slow = [sum(row[i] * torch.outer(gate[i], up[i]) for i in range(11)) for row in down]
    assert (form_norms(gate, up, down) - torch.stack([form.norm() for form in slow])).abs().max() < EXACT


def test_one_hidden_unit_that_reads_one_direction_is_one_eigenpair() -> None:
    direction = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    share, vector = dominance(quadratic_form(direction, direction, torch.tensor([2.0], dtype=torch.float64)))
    assert abs(share - 1) < EXACT
    assert abs(abs(float(vector @ direction[0])) - 5) < EXACT


def test_the_identity_and_zero_have_no_dominant_eigenpair() -> None:
    assert abs(dominance(torch.eye(4))[0] - 0.5) < EXACT  # 1 / sqrt(width)
    assert dominance(torch.zeros(4, 4))[0] == 0.0
