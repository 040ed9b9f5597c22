import pytest
import torch

from attnscope.measures.value_drain import value_drain


def values(*norms: float) -> torch.Tensor:
    """Return values with these norms, in different directions."""
    return (torch.tensor(norms, dtype=torch.float64)[:, None] * torch.eye(len(norms), dtype=torch.float64))[None, None]


def test_by_hand(ask, statistics, first_column, identity, uniform_causal):
    value = values(0.5, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0)  # mean 1
    for pattern in (first_column, uniform_causal):  # both give the first key the most
        found = value_drain(**{n: {**statistics(pattern), "value": value}[n] for n in value_drain.reads})["value"]
        assert (found.value.item(), found.where["key"].item()) == (pytest.approx(0.5), 0)
    elsewhere = torch.roll(first_column, 3, -1)
    found = value_drain(**{n: {**statistics(elsewhere), "value": value}[n] for n in value_drain.reads})["value"]
    assert (found.value.item(), found.where["key"].item()) == (pytest.approx(1.5), 3)


def test_heads_that_share_values(ask, statistics, random_pattern):
    pattern = random_pattern(0, 2, 4, 9, 9, causal=True)
    shared = torch.randn(2, 2, 9, 5, dtype=torch.float64)
    fields = statistics(pattern)
    grouped = ask(value_drain, {**fields, "value": shared})
    repeated = ask(value_drain, {**fields, "value": shared.repeat_interleave(2, 1)})
    torch.testing.assert_close(grouped, repeated)


def test_bound_and_invariance(ask, statistics, random_pattern):
    fields = statistics(random_pattern(1, 3, 2, 7, 7))
    value = torch.randn(3, 2, 7, 5, dtype=torch.float64)
    found = ask(value_drain, {**fields, "value": value})
    assert (found <= 7).all(), "no norm is more than n times the mean norm"
    torch.testing.assert_close(ask(value_drain, {**fields, "value": 40 * value}), found)


def test_nonsense_in_padding_is_invisible(ask, statistics, random_pattern, pad):
    pattern, value = random_pattern(2, 1, 2, 6, 6, causal=True), torch.randn(1, 2, 6, 5, dtype=torch.float64)
    mask = pad(torch.ones(1, 6, dtype=torch.bool), 2, 0, False)
    wide = {**statistics(pad(pattern, 2, 0, 0.7, dims=(2, 3)), mask, mask), "value": pad(value, 2, 0, torch.nan, (2,))}
    torch.testing.assert_close(ask(value_drain, wide), ask(value_drain, {**statistics(pattern), "value": value}))
