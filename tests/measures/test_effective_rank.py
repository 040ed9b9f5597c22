import pytest
import torch

from attnscope.measures.effective_rank import effective_rank


def test_by_hand(ask, whole):
    assert ask(effective_rank, whole(torch.eye(5)[None])).item() == pytest.approx(5.0, rel=1e-6)
    rank_one = torch.arange(1.0, 5.0)[:, None] * torch.tensor([1.0, -2.0, 4.0])
    assert ask(effective_rank, whole(rank_one[None])).item() == pytest.approx(1.0, abs=1e-4)


def test_bound_and_invariance(ask, whole, noise):
    value = ask(effective_rank, whole(noise))
    assert ((value >= 1) & (value <= 6)).all()
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    torch.testing.assert_close(ask(effective_rank, whole(3.0 * noise @ turn)), value)
    torch.testing.assert_close(ask(effective_rank, whole(noise.flip(1))), value)
