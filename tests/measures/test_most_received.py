import pytest
import torch

from attnscope.measures.most_received import most_received


def _ask(fields):
    return most_received(**{name: fields[name] for name in most_received.reads})["value"]


def test_by_hand(statistics, identity, uniform, uniform_causal, first_column):
    assert _ask(statistics(identity)).value.item() == pytest.approx(1 / 8)
    assert _ask(statistics(uniform)).value.item() == pytest.approx(1 / 8)
    rank_one = _ask(statistics(first_column.roll(5, dims=-1)))
    assert (rank_one.value.item(), rank_one.where["key"].item()) == (1.0, 5)
    causal = _ask(statistics(uniform_causal))  # the first key gets H_8/8
    assert causal.value.item() == pytest.approx(sum(1 / i for i in range(1, 9)) / 8)
    assert causal.where["key"].item() == 0


def test_the_last_key_does_not_win_by_having_one_row(statistics):
    """A causal identity head with a sink: alpha_{n-1} is 1 for the last key, which is one row of eight."""
    pattern = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    pattern[..., 0] = 1.0
    pattern[..., 7, :] = torch.eye(8, dtype=torch.float64)[7]
    answer = _ask(statistics(pattern))
    assert (answer.value.item(), answer.where["key"].item()) == (7 / 8, 0)


def test_bound_and_invariance(statistics, random_pattern):
    pattern = random_pattern(0, 2, 3, 9, 9)
    answer = _ask(statistics(pattern))
    assert ((answer.value >= 1 / 9) & (answer.value <= 1)).all()  # some key gets at least the mean
    order = torch.randperm(9)
    shuffled = _ask(statistics(pattern[..., order]))
    torch.testing.assert_close(shuffled.value, answer.value)
    assert torch.equal(order[shuffled.where["key"]], answer.where["key"])


def test_keys_are_counted_from_the_first_real_one(statistics, padded_statistics, random_pattern):
    pattern = random_pattern(1, 2, 3, 9, 9, causal=True)
    padded, plain = _ask(padded_statistics(pattern)), _ask(statistics(pattern))
    torch.testing.assert_close(padded.value, plain.value)
    assert torch.equal(padded.where["key"], plain.where["key"])
