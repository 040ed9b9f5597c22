import pytest
import torch

from attnscope.measures.residual_frobenius import residual_frobenius


def test_by_hand(ask, whole):
    equal = torch.tensor([1.0, 2.0, -3.0]).expand(1, 5, 3)
    assert ask(residual_frobenius, whole(equal)).item() == 0.0
    axes = torch.eye(4)[None]  # ||I - 11^T/4||_F = sqrt(3)
    assert ask(residual_frobenius, whole(axes)).item() == pytest.approx(3**0.5)


def test_bound_and_invariance(ask, whole, noise):
    value = ask(residual_frobenius, whole(noise))
    assert (value <= noise.norm(dim=(1, 2))).all()
    torch.testing.assert_close(ask(residual_frobenius, whole(noise + 4.0)), value)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    torch.testing.assert_close(ask(residual_frobenius, whole(noise @ turn)), value)
