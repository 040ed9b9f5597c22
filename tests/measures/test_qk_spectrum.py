import math

import pytest
import torch

from attnscope.measures.qk_spectrum import qk_spectrum


def _ask(query: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
    parts = qk_spectrum(query_weight=query, key_weight=key)
    return [parts[part].value for part in ("mean", "variance", "eta")]


def test_by_hand():
    heads = torch.stack([torch.eye(3), 2 * torch.eye(3), torch.diag(torch.tensor([3.0, 0.0, 0.0]))])
    mean, variance, eta = _ask(heads, torch.eye(3).expand(3, 3, 3))
    assert mean.tolist() == pytest.approx([1.0, 2.0, 1.0])
    assert variance.tolist() == pytest.approx([0.0, 0.0, 2.0])
    assert eta.tolist() == pytest.approx([1.0, 1.0, 1 / math.sqrt(3)])


def test_bound_and_invariance():
    query, key = torch.randn(5, 12, 4), torch.randn(5, 12, 4)
    mean, _, eta = _ask(query, key)
    assert (eta.abs() <= math.sqrt(4 / 12) + 1e-6).all()
    turn = torch.linalg.qr(torch.randn(12, 12)).Q  # turning the stream turns both weights
    torch.testing.assert_close(_ask(turn @ query, turn @ key)[0], mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(_ask(3 * query, key)[2], eta, rtol=1e-5, atol=1e-7)


def test_queries_and_keys_without_each_other_have_no_spectrum():
    assert [part.tolist() for part in _ask(torch.zeros(1, 4, 2), torch.ones(1, 4, 2))] == [[0.0]] * 3
