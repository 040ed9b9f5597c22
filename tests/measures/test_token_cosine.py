import pytest
import torch

from attnscope.measures.token_cosine import token_cosine


def test_by_hand(ask, whole):
    equal = torch.tensor([0.1, 0.2, -0.3]).expand(1, 50, 3)
    assert ask(token_cosine, whole(equal)).item() == pytest.approx(1.0, abs=1e-6)
    assert ask(token_cosine, whole(torch.eye(4)[None])).item() == pytest.approx(0.0, abs=1e-7)
    three = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 5.0]]])  # cosines 1, 0, 0
    assert ask(token_cosine, whole(three)).item() == pytest.approx(1 / 3)


def test_bound_and_invariance(ask, whole, noise):
    value = ask(token_cosine, whole(noise))
    assert ((value >= -1 / 9) & (value <= 1)).all()
    lengths = torch.rand(3, 10, 1, dtype=torch.float64) + 0.5
    torch.testing.assert_close(ask(token_cosine, whole(noise * lengths)), value)
