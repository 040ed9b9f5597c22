"""Span: cases by hand, quantiles by counting, and that a sink does not change it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.measures.span import span


def spans(ask, fields) -> tuple[float, float]:
    parts = ask(span, fields)
    return parts["half"].value.item(), parts["most"].value.item()


def test_by_hand(ask, statistics, known):
    assert spans(ask, statistics(known["identity"])) == (0.0, 0.0)
    assert spans(ask, statistics(known["first_column"])) == (0.0, 0.0)  # nothing is left without the sink
    # 8 x 8 keys of equal mass without column 0: distance 0 has 7 of 56, distance d has 15 - 2 d.
    assert spans(ask, statistics(known["uniform"])) == (2.0, 6.0)


@pytest.mark.parametrize("away", [0, 1, 5])
@pytest.mark.parametrize("sink_share", [0.0, 0.5, 0.99])
def test_a_sink_changes_nothing(ask, statistics, away, sink_share):
    """Every query attends `away` tokens back, and to the first key as much as it likes."""
    n = 32
    pattern = torch.zeros(1, 1, n, n, dtype=torch.float64)
    rows = torch.arange(n)
    pattern[0, 0, rows, (rows - away).clamp_min(0)] = 1 - sink_share
    pattern[..., 0] += sink_share
    assert spans(ask, statistics(pattern)) == (away, away)


@pytest.mark.parametrize("place", [7, 31])
def test_a_sink_elsewhere_changes_nothing(ask, statistics, place):
    n = 32
    pattern = 0.4 * torch.eye(n, dtype=torch.float64)[None, None].clone()
    pattern[..., place] += 0.6
    assert spans(ask, statistics(pattern)) == (0.0, 0.0)


@given(seed=st.integers(0, 2**16), n=st.integers(2, 40))
def test_is_the_least_distance_that_holds_the_share(seed, n):
    mass = torch.rand(2, 3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 8
    parts = span(mass_by_distance=mass)
    for part, share in (("half", 0.5), ("most", 0.95)):
        for row, found in zip(mass.flatten(0, 1), parts[part].value.flatten(), strict=True):
            least = next(w for w in range(n) if row[: w + 1].sum() >= share * row.sum() * (1 - 1e-12))
            assert found.item() == least
    assert (parts["half"].value <= parts["most"].value).all()
    assert (parts["most"].value <= n - 1).all()


def test_padding_is_invisible(ask, padded_statistics, statistics, random_pattern):
    pattern = random_pattern(3, 2, 3, 12, 12, causal=True)
    inside, bare = ask(span, padded_statistics(pattern)), ask(span, statistics(pattern))
    for part in ("half", "most"):
        assert torch.equal(inside[part].value, bare[part].value)


def test_is_not_taken_in_cross_attention():
    assert span.card.sites == ("self",)


def test_a_broken_head_stays_broken():
    mass = torch.tensor([[[1.0, torch.nan, 0.0], [1.0, 0.0, 0.0]]])
    assert span(mass_by_distance=mass)["most"].value.isnan().tolist() == [[True, False]]
