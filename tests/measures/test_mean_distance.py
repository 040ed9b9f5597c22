import pytest
import torch

from attnscope.measures.mean_distance import mean_distance


def test_by_hand(ask, statistics, identity, uniform, first_column):
    assert ask(mean_distance, statistics(identity)).item() == 0.0
    assert ask(mean_distance, statistics(first_column)).item() == pytest.approx(3.5)  # mean of 0..7
    assert ask(mean_distance, statistics(uniform)).item() == pytest.approx((64 - 1) / 24)  # (n^2 - 1)/(3 n)


def test_bound_and_invariance(ask, statistics, random_pattern):
    pattern = random_pattern(0, 2, 3, 9, 9)
    value = ask(mean_distance, statistics(pattern))
    assert ((value > 0) & (value < 8)).all()
    torch.testing.assert_close(ask(mean_distance, statistics(pattern.flip(-1, -2))), value)
