import pytest
import torch

from attnscope.core.limits import SINK_MASS
from attnscope.measures.sink_mass import sink_mass


def test_by_hand(ask, statistics, identity, uniform, first_column):
    for pattern, mass, rate in ((identity, 1 / 8, 0.0), (uniform, 1 / 8, 0.0), (first_column, 1.0, 1.0)):
        parts = ask(sink_mass, statistics(pattern))
        assert parts["value"].value.item() == pytest.approx(mass)
        assert parts["rate"].value.item() == rate


@pytest.mark.parametrize("n", [8, 50])
def test_uniform_causal_attention_has_the_harmonic_share(ask, statistics, n):
    lower = torch.tril(torch.ones(n, n, dtype=torch.float64))
    parts = ask(sink_mass, statistics((lower / lower.sum(dim=-1, keepdim=True))[None, None]))
    harmonic = sum(1 / i for i in range(1, n + 1))
    assert parts["value"].value.item() == pytest.approx(harmonic / n)
    assert parts["rate"].value.item() == float(harmonic / n > SINK_MASS)


def test_bound_and_invariance(ask, statistics, random_pattern):
    pattern = random_pattern(0, 4, 3, 9, 9)
    parts = ask(sink_mass, statistics(pattern))
    assert ((parts["value"].value > 0) & (parts["value"].value < 1)).all()
    assert ((parts["rate"].value == 1) == (parts["value"].value > SINK_MASS)).all()
    others = torch.cat([pattern[..., :1], pattern[..., 1:].flip(-1)], dim=-1)
    torch.testing.assert_close(ask(sink_mass, statistics(others))["value"].value, parts["value"].value)
