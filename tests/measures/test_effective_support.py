import pytest
import torch

from attnscope.measures.effective_support import effective_support


def test_by_hand(ask, statistics, known):
    assert ask(effective_support, statistics(known["identity"])).item() == pytest.approx(1.0)
    assert ask(effective_support, statistics(known["first_column"])).item() == pytest.approx(1.0)
    assert ask(effective_support, statistics(known["uniform"])).item() == pytest.approx(8.0)
    assert ask(effective_support, statistics(known["uniform_causal"])).item() == pytest.approx(4.5)  # mean of 1..8


def test_mass_lost_to_a_learned_sink_does_not_count_as_keys(ask, statistics, uniform, random_pattern):
    assert ask(effective_support, statistics(0.01 * uniform)).item() == pytest.approx(8.0)
    pattern = random_pattern(0, 2, 3, 9, 9)
    value = ask(effective_support, statistics(pattern))
    torch.testing.assert_close(ask(effective_support, statistics(0.3 * pattern)), value)
    assert ask(effective_support, statistics(0.0 * uniform)).item() == 0.0


def test_bound(ask, statistics, random_pattern):
    """Between one key and the exponential of the entropy, which is at most all keys."""
    fields = statistics(random_pattern(1, 2, 3, 9, 9))
    value = ask(effective_support, fields)
    assert (value >= 1).all()
    assert (value <= fields["row_entropy"].exp().mean(dim=-1)).all()
