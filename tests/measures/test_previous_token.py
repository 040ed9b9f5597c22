import pytest
import torch

from attnscope.measures.previous_token import previous_token


def test_by_hand(ask, statistics, identity, uniform, first_column):
    assert ask(previous_token, statistics(identity)).item() == 0.0
    assert ask(previous_token, statistics(uniform)).item() == pytest.approx(1 / 8)
    assert ask(previous_token, statistics(first_column)).item() == pytest.approx(1 / 7)  # only for the second token
    shifted = identity.roll(1, dims=-2)
    shifted[..., 0, :] = torch.eye(8, dtype=torch.float64)[0]  # the first token has itself only
    assert ask(previous_token, statistics(shifted)).item() == 1.0


def test_single_token_has_no_previous_token(ask, statistics):
    assert ask(previous_token, statistics(torch.ones(1, 1, 1, 1, dtype=torch.float64))).item() == 0.0


def test_bound_and_invariance(ask, statistics, random_pattern):
    pattern = random_pattern(0, 2, 3, 9, 9)
    value = ask(previous_token, statistics(pattern))
    assert ((value > 0) & (value < 1)).all()
    torch.testing.assert_close(ask(previous_token, statistics(pattern.flip(1))), value.flip(1))
