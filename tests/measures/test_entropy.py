import math

import pytest
import torch

from attnscope.measures.entropy import entropy


def test_by_hand(ask, statistics, known):
    assert ask(entropy, statistics(known["identity"])).item() == 0.0
    assert ask(entropy, statistics(known["first_column"])).item() == 0.0
    assert ask(entropy, statistics(known["uniform"])).item() == pytest.approx(math.log(8))
    expected = sum(math.log(i) for i in range(1, 9)) / 8
    assert ask(entropy, statistics(known["uniform_causal"])).item() == pytest.approx(expected)


def test_bound_and_invariance(ask, statistics, random_pattern):
    pattern = random_pattern(0, 2, 3, 9, 9)
    value = ask(entropy, statistics(pattern))
    assert ((value > 0) & (value < math.log(9))).all()
    torch.testing.assert_close(ask(entropy, statistics(pattern[..., torch.randperm(9)])), value)
