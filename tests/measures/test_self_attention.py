import pytest
import torch

from attnscope.measures.self_attention import self_attention


def test_by_hand(ask, statistics, known):
    assert ask(self_attention, statistics(known["identity"])).item() == 1.0
    assert ask(self_attention, statistics(known["uniform"])).item() == pytest.approx(1 / 8)
    assert ask(self_attention, statistics(known["first_column"])).item() == pytest.approx(1 / 8)
    harmonic = sum(1 / i for i in range(1, 9))
    assert ask(self_attention, statistics(known["uniform_causal"])).item() == pytest.approx(harmonic / 8)


def test_bound_and_invariance(ask, statistics, random_pattern):
    pattern = random_pattern(0, 2, 3, 9, 9)
    value = ask(self_attention, statistics(pattern))
    assert ((value > 0) & (value < 1)).all()
    order = torch.randperm(9)
    torch.testing.assert_close(ask(self_attention, statistics(pattern[..., order, :][..., order])), value)
