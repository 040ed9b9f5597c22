"""Relative residuals in four norms: by hand, best centre, padding, zeros."""

from __future__ import annotations

import pytest
import torch

from attnscope.matrix.residual import YARDSTICKS, largest_column_sum, largest_row_sum


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
