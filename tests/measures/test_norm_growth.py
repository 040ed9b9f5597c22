import pytest
import torch

from attnscope.measures.norm_growth import norm_growth


def _fields(whole, before, after):
    return {**whole(after), "stream_before": before}


def test_by_hand(ask, whole, noise):
    torch.testing.assert_close(
        ask(norm_growth, _fields(whole, noise, -3.0 * noise)), torch.full((3,), 3.0, dtype=torch.float64)
    )
    before = torch.ones(1, 2, 3)
    after = before * torch.tensor([2.0, 8.0])[:, None]  # the geometric mean of 2 and 8
    assert ask(norm_growth, _fields(whole, before, after)).item() == pytest.approx(4.0)


def test_factors_of_successive_blocks_multiply(ask, whole, noise):
    middle, after = noise.flip(1) ** 2, noise.flip(2) + 1
    first = ask(norm_growth, _fields(whole, noise, middle))
    second = ask(norm_growth, _fields(whole, middle, after))
    torch.testing.assert_close(first * second, ask(norm_growth, _fields(whole, noise, after)))


def test_one_massive_token_counts_as_one_token(ask, whole, noise):
    after = noise.clone()
    after[:, 0] *= 1e4
    torch.testing.assert_close(
        ask(norm_growth, _fields(whole, noise, after)), torch.full((3,), 1e4**0.1, dtype=torch.float64)
    )
