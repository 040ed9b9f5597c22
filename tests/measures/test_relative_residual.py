import pytest
import torch

from attnscope.measures.relative_residual import relative_residual


def test_equal_tokens_have_no_residual_and_opposite_tokens_all(ask, whole):
    equal = torch.tensor([1.0, 2.0, -3.0]).expand(1, 5, 3)
    assert ask(relative_residual, whole(equal)).item() == 0.0
    opposite = torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]])
    assert ask(relative_residual, whole(opposite)).item() == pytest.approx(1.0)


def test_two_tokens_by_hand(ask, whole):
    # mean (2, 0); residual rows (-1, 1), (1, -1): norms 2 and 2. Stream: columns 4 and 2, rows 2 and 4.
    stream = torch.tensor([[[1.0, 1.0], [3.0, -1.0]]])
    assert ask(relative_residual, whole(stream)).item() == pytest.approx(0.5)


def test_bound_and_invariance(ask, whole, noise):
    value = ask(relative_residual, whole(noise))
    assert ((value > 0) & (value < 2)).all()
    torch.testing.assert_close(ask(relative_residual, whole(7.0 * noise)), value)
    torch.testing.assert_close(ask(relative_residual, whole(noise[:, :, torch.randperm(6)])), value)
