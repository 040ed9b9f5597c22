"""Residuals: by hand, best centre, bounds, padding, zeros, and relative residuals in four norms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.matrix.residual import (
    YARDSTICKS,
    composite_norm,
    largest_column_sum,
    largest_row_sum,
    relative_residual,
    residual_about_chebyshev,
    residual_about_mean,
    residual_about_median,
    residual_frobenius,
)

seeds = st.integers(0, 2**31 - 1)


def _tokens(seed: int, rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, rows, width, dtype=torch.float64, generator=generator) * 3 + 1


def test_norms_of_a_matrix_solved_by_hand():
    matrix = torch.tensor([[1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)
    assert largest_column_sum(matrix).item() == 6.0  # |-2| + |4|
    assert largest_row_sum(matrix).item() == 7.0  # |3| + |4|
    assert composite_norm(matrix).item() == pytest.approx(42.0**0.5, rel=1e-15)


def test_residuals_solved_by_hand():
    # One column 0, 1, 5: mean 2, median 1, midrange 2.5.
    tokens = torch.tensor([[[0.0], [1.0], [5.0]]], dtype=torch.float64)
    assert residual_about_mean(tokens).flatten().tolist() == [-2.0, -1.0, 3.0]
    assert residual_about_median(tokens).flatten().tolist() == [-1.0, 0.0, 4.0]
    assert residual_about_chebyshev(tokens).flatten().tolist() == pytest.approx([-2.5, -1.5, 2.5], abs=1e-12)
    assert residual_frobenius(tokens).item() == pytest.approx(14.0**0.5)
    # ||res||_1 = 6, ||res||_inf = 3, ||X||_1 = 6, ||X||_inf = 5
    assert relative_residual(tokens).item() == pytest.approx((18.0 / 30.0) ** 0.5)


def test_equal_tokens_have_no_residual():
    tokens = torch.tensor([1.0, -2.0, 7.0], dtype=torch.float64).expand(2, 5, 3)
    for residual in (residual_about_mean, residual_about_median, residual_about_chebyshev):
        assert residual(tokens).abs().max().item() < 1e-12
    assert relative_residual(torch.zeros(1, 4, 3)).item() == 0.0


@given(seeds, st.integers(2, 7), st.integers(1, 4))
def test_each_centre_is_best_in_its_own_norm(seed: int, rows: int, width: int):
    tokens = _tokens(seed, rows, width)
    mean, median, chebyshev = (
        residual(tokens) for residual in (residual_about_mean, residual_about_median, residual_about_chebyshev)
    )
    slack = 1 + 1e-9
    assert largest_column_sum(median) <= largest_column_sum(mean) * slack
    assert largest_column_sum(median) <= largest_column_sum(chebyshev) * slack
    assert largest_row_sum(chebyshev) <= largest_row_sum(mean) * slack
    assert largest_row_sum(chebyshev) <= largest_row_sum(median) * slack
    assert mean.norm() <= min(median.norm(), chebyshev.norm()) * slack
    # The mean is within 2 (1 - 1/n) of the best in both norms.
    factor = 2 * (1 - 1 / rows) * slack
    assert largest_column_sum(mean) <= factor * largest_column_sum(median)
    assert largest_row_sum(mean) <= factor * largest_row_sum(chebyshev)


@given(seeds)
def test_the_linear_program_beats_a_fine_grid(seed: int):
    tokens = _tokens(seed, 4, 2)
    best = largest_row_sum(residual_about_chebyshev(tokens)).item()
    low, high = tokens.amin().item(), tokens.amax().item()
    grid = torch.tensor(
        [[x, y] for x in np.linspace(low, high, 41) for y in np.linspace(low, high, 41)], dtype=torch.float64
    )
    found = (tokens[0][None] - grid[:, None]).abs().sum(dim=-1).amax(dim=-1).amin().item()
    assert best <= found + 1e-9
    assert found - best <= 2 * (high - low) / 40  # a grid point lies within half a step in each coordinate


@given(seeds, st.floats(0.01, 100.0))
def test_the_relative_residual_ignores_scale_and_order_and_stays_below_two(seed: int, scale: float):
    tokens = _tokens(seed, 6, 5)
    value = relative_residual(tokens)
    assert 0.0 <= value.item() <= 2 * (1 - 1 / 6)
    torch.testing.assert_close(relative_residual(tokens * scale), value)
    torch.testing.assert_close(relative_residual(tokens.flip(1)), value)


@pytest.mark.parametrize("left", [0, 2])
def test_padding_is_invisible_even_if_it_holds_nan(left: int):
    tokens = _tokens(3, 5, 4).expand(2, -1, -1).contiguous()
    tokens[1] *= 2
    padded = torch.full((2, 8, 4), torch.nan, dtype=torch.float64)
    mask = torch.zeros(2, 8, dtype=torch.bool)
    padded[:, left : left + 5], mask[:, left : left + 5] = tokens, True
    for function in (relative_residual, residual_frobenius):
        torch.testing.assert_close(function(padded, mask), function(tokens))
    for function in (residual_about_mean, residual_about_median, residual_about_chebyshev):
        answer = function(padded, mask)
        torch.testing.assert_close(answer[:, left : left + 5], function(tokens))
        assert answer[~mask].abs().sum().item() == 0.0


def test_a_nearly_collapsed_stream_keeps_its_digits_in_float32():
    # The residual is formed before it is squared: 1e-3 beside tokens of size 1e3 survives.
    wobble = torch.tensor([1.0, -1.0, 1.0, -1.0])[None, :, None] * 2.0**-10
    tokens = 1024.0 + wobble.expand(1, 4, 8)
    assert residual_frobenius(tokens).item() == pytest.approx(32**0.5 * 2.0**-10, rel=1e-6)


def test_groups_of_sequences_give_what_one_sequence_gives(monkeypatch: pytest.MonkeyPatch):
    tokens = torch.randn(7, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = relative_residual(tokens)
    one_by_one = torch.cat([relative_residual(tokens[i : i + 1]) for i in range(7)])
    assert torch.equal(together, one_by_one)


def real(stream: torch.Tensor) -> torch.Tensor:
    return torch.ones(stream.shape[:2], dtype=torch.bool)


def test_by_hand() -> None:
    stream = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]], dtype=torch.float64)
    expected = {"1,inf": (2 * 1) ** 0.5 / (6 * 3) ** 0.5, "frobenius": (2 / 14) ** 0.5, "1": 2 / 6, "inf": 1 / 3}
    for name, yardstick in YARDSTICKS.items():
        assert float(yardstick(stream, real(stream))) == pytest.approx(expected[name]), name


@pytest.mark.parametrize("name", ["1", "inf", "frobenius"])
def test_no_centre_is_better(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    stream = torch.randn(1, 7, 4, generator=draw, dtype=torch.float64)
    norm = {"1": largest_column_sum, "inf": largest_row_sum, "frobenius": lambda m: m.norm(dim=(-2, -1))}[name]
    best = float(YARDSTICKS[name](stream, real(stream)))
    for _ in range(50):
        centre = stream.mean(1, keepdim=True) + 0.3 * torch.randn(1, 1, 4, generator=draw, dtype=torch.float64)
        assert best <= float(norm(stream - centre) / norm(stream)) + 1e-9


@pytest.mark.parametrize("name", YARDSTICKS)
def test_padding_and_zeros(name: str) -> None:
    stream = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    padded = torch.cat([torch.full((1, 2, 3), torch.nan, dtype=torch.float64), stream], dim=1)
    mask = torch.tensor([[False, False, True, True, True, True, True]])
    alone = YARDSTICKS[name](stream, real(stream))
    torch.testing.assert_close(YARDSTICKS[name](padded, mask), alone)
    assert float(YARDSTICKS[name](torch.zeros(1, 3, 2), torch.ones(1, 3, dtype=torch.bool))) == 0.0
