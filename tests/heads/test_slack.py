"""What rounding can do to a logit: never less than it does, nothing where nothing rounds, and no head by luck."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.certificate import UNITS, certify, logits_and_slack, lowest_bit, step_of
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern

SINGLE = UNITS["float32"]


def summed(query: np.ndarray, key: np.ndarray, order: np.ndarray) -> np.float32:
    total = np.float32(0)
    for c in order:
        total = np.float32(total + np.float32(query[c] * key[c]))
    return total


@given(seed=st.integers(0, 10_000), width=st.integers(1, 12), length=st.floats(0, 8))
def test_no_order_of_summation_is_farther_off(seed: int, width: int, length: float) -> None:
    rng = np.random.default_rng(seed)
    queries, keys = (rng.standard_normal((3, width)).astype(np.float32) for _ in range(2))
    queries *= np.float32(10**length)
    scale = width**-0.5
    exact, slack = logits_and_slack(torch.from_numpy(queries), torch.from_numpy(keys), scale, SINGLE)
    for _ in range(5):
        order = rng.permutation(width)
        run = np.array([[np.float32(summed(q, k, order)) for k in keys] for q in queries]).astype(np.float64) * scale
        assert (np.abs(run - exact.numpy()) <= slack.numpy()).all()


def test_whole_numbers_do_not_round_until_their_sums_are_too_long() -> None:
    keys = torch.tensor([[3.0, 5.0, 0.5, 2.0]])  # multiples of 1/2; the scale of width 4 is a power of two
    short, long = torch.tensor([[7.0, -4.0, 2.0, 0.0]]), torch.tensor([[7.0, -4.0, 2.0**26, 0.0]])
    assert logits_and_slack(short, keys, 0.5, SINGLE).slack.item() == 0
    assert logits_and_slack(long, keys, 0.5, SINGLE).slack.item() > 0
    assert logits_and_slack(short, keys, 0.3, SINGLE).slack.item() == pytest.approx(0.3 * SINGLE * 2, rel=1e-5)


@given(st.integers(-(2**24) + 1, 2**24 - 1), st.integers(-40, 40))
def test_the_lowest_bit_divides_and_twice_it_does_not(whole: int, exponent: int) -> None:
    value = math.ldexp(whole, exponent)
    bit = lowest_bit(torch.tensor([value], dtype=torch.float64)).item()
    if whole == 0:
        assert bit == math.inf
    else:
        assert (value / bit).is_integer()
        assert not (value / (2 * bit)).is_integer()


def test_a_column_of_zeros_rounds_nothing() -> None:
    keys = torch.tensor([[4.0, 0.0], [8.0, 0.0]])
    assert step_of(torch.tensor([[2.0, 0.1], [0.0, 0.3]]), keys).tolist() == [8.0, math.inf]


def test_no_head_passes_because_rounded_logits_tie() -> None:
    """Two rows of log weights (4, 0, 0) and (0, 4, 0) have rank two. On these keys of width one float32 products happen
    to be 4 apart and 0 apart, which one evaluation would take for an exact answer."""
    keys = torch.tensor([[2.0**25 - 6], [2.0**25 - 10], [2.0**25 - 8]])
    queries = torch.tensor([[1 + 1025 / 4096], [-1 - 1 / 4096]])
    weights = np.exp([4.0, 0, 0, 0, 4.0, 0])
    pattern = Pattern.of(np.repeat([0, 1], 3), np.tile(np.arange(3), 2), weights, n=2, n_keys=3, normalise=True)
    run = queries @ keys.T
    assert (run[0] - run[0, 2]).tolist() == [4, 0, 0]
    assert (run[1] - run[1, 2]).tolist() == [0, 4, 0]
    assert lower_bounds(pattern, Accuracy()).best.width == 2
    found = certify(Head(queries, keys, False, "luck"), pattern, Accuracy())
    assert found.failing == 2
    assert found.rounding is not None
    assert found.rounding > 1
