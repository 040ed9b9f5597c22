from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.matrix.rank import (
    GRAM_LIMIT,
    effective_rank,
    gram_stable_rank,
    singular_values,
    stable_rank,
)


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _by_svd(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.linalg.svdvals(tokens.double())
    share = values / values.sum(dim=-1, keepdim=True)
    stable = values.square().sum(dim=-1) / values[..., 0].square()
    return stable, torch.special.entr(share).sum(dim=-1).exp()


def test_solved_by_hand():
    identity = torch.eye(6, 9, dtype=torch.float64)[None]
    assert stable_rank(identity).item() == pytest.approx(6.0)
    assert effective_rank(identity).item() == pytest.approx(6.0)
    rank_one = torch.arange(1.0, 6.0)[:, None] * torch.tensor([2.0, -1.0, 3.0])
    assert stable_rank(rank_one[None]).item() == pytest.approx(1.0, abs=1e-6)
    assert effective_rank(rank_one[None]).item() == pytest.approx(1.0, abs=1e-5)
    diagonal = torch.diag(torch.tensor([2.0, 1.0, 1.0]))[None]
    assert stable_rank(diagonal).item() == pytest.approx(6 / 4)
    # p = 1/2, 1/4, 1/4: entropy 3/2 ln 2
    assert effective_rank(diagonal).item() == pytest.approx(2**1.5, rel=1e-6)


def test_zeros_have_rank_zero():
    zeros = torch.zeros(2, 4, 3)
    for rank in (stable_rank, gram_stable_rank, effective_rank):
        assert rank(zeros).tolist() == [0, 0]


@given(st.integers(0, 2**31 - 1), st.integers(1, 20), st.integers(3, 20), st.floats(0.0, 4.0))
def test_against_svd(seed: int, rows: int, width: int, shift: float):
    tokens = _random(seed, 3, rows, width) + shift * _random(seed + 1, 1, 1, width)
    stable, effective = _by_svd(tokens)
    torch.testing.assert_close(stable_rank(tokens), stable, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(effective_rank(tokens), effective, rtol=1e-6, atol=0.0)
    most = min(rows, width) * (1 + 1e-9)
    assert (stable_rank(tokens) <= most * (1 + 1e-9)).all()
    assert (effective_rank(tokens) <= most).all()
    assert (effective_rank(tokens) >= 1 - 1e-9).all()
    torch.testing.assert_close(singular_values(tokens), torch.linalg.svdvals(tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rows", "width"), [(128, 64), (48, 96), (300, 32)])
def test_float32_streams_of_every_kind_of_spectrum(rows: int, width: int):
    flat = _random(0, 1, rows, width)
    mean_heavy = flat + 3 * _random(1, 1, 1, width)
    fast_decay = flat * torch.logspace(0, -5, width, dtype=torch.float64)
    massive = flat.clone()
    massive[0, 0, 5] = 1e4
    twins = flat.clone()  # two equal largest singular values
    left, values, right = torch.linalg.svd(twins[0], full_matrices=False)
    values[1] = values[0]
    twins[0] = left @ torch.diag(values) @ right
    tokens = torch.cat([flat, mean_heavy, fast_decay, massive, twins]).float()
    stable, effective = _by_svd(tokens)
    torch.testing.assert_close(stable_rank(tokens).double(), stable, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(effective_rank(tokens).double(), effective, rtol=1e-5, atol=0.0)


def test_long_and_wide_streams_take_the_other_route_to_the_same_number():
    """Exact where a direction stands out, and within a hundredth even for a flat spectrum."""
    size = GRAM_LIMIT + 40
    flat = _random(3, 1, size, size)
    mean_heavy = flat + 3 * _random(1, 1, 1, size)
    balanced = torch.cat([flat[:, : size // 2], -flat[:, : size // 2]], dim=1)  # the mean token is zero
    tokens = torch.cat([mean_heavy, balanced, flat]).float()
    expected = _by_svd(tokens)[0]
    fourth = torch.linalg.svdvals(tokens.double()).pow(4)
    torch.testing.assert_close(
        gram_stable_rank(tokens[:1]).double(), fourth[:1].sum(-1) / fourth[:1, 0], rtol=1e-5, atol=0.0
    )
    error = stable_rank(tokens).double() / expected - 1
    assert error[0].abs() < 1e-5
    assert ((error > -1e-5) & (error < 1e-2)).all()
    left, right = torch.nn.functional.pad(tokens, (0, 0, 3, 0)), torch.nn.functional.pad(tokens, (0, 0, 0, 3))
    mask = torch.ones(3, size, dtype=torch.bool)
    values = [
        stable_rank(padded, torch.nn.functional.pad(mask, shift)) for padded, shift in ((left, (3, 0)), (right, (0, 3)))
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=0.0)
    torch.testing.assert_close(values[0], stable_rank(tokens), rtol=1e-5, atol=0.0)
    assert stable_rank(torch.zeros(1, size, size)).item() == 0.0


@given(st.integers(0, 2**31 - 1), st.floats(0.01, 100.0))
def test_rotations_and_scale_do_not_matter(seed: int, scale: float):
    tokens = _random(seed, 1, 9, 5) + 1
    turn = torch.linalg.qr(_random(seed + 1, 5, 5)).Q
    torch.testing.assert_close(stable_rank(scale * tokens @ turn), stable_rank(tokens), rtol=1e-7, atol=0.0)
    torch.testing.assert_close(effective_rank(scale * tokens @ turn), effective_rank(tokens), rtol=1e-7, atol=0.0)


@pytest.mark.parametrize("left", [0, 4])
def test_padding_and_neighbours_with_nan_change_nothing(left: int):
    tokens = _random(2, 3, 8, 6).float() + 1
    padded = torch.full((3, 13, 6), torch.nan)
    mask = torch.zeros(3, 13, dtype=torch.bool)
    padded[:, left : left + 8], mask[:, left : left + 8] = tokens, True
    padded[1, left + 2, 3] = torch.nan
    for rank in (stable_rank, effective_rank):
        value, expected = rank(padded, mask), rank(tokens)
        assert value[1].isnan()
        torch.testing.assert_close(value[[0, 2]], expected[[0, 2]], rtol=1e-5, atol=0.0)
