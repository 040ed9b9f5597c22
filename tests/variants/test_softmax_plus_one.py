"""Softmax plus one: a row may sum to less than 1."""

import pytest
import torch

from attnscope.variants.softmax_plus_one import pattern, softmax_plus_one
from tests.variants.calls import heads, inputs


def test_by_the_formula() -> None:
    query, key, value = heads()
    raised = (0.5 * query @ key.mT).exp()
    expected = raised / (1 + raised.sum(-1, keepdim=True)) @ value
    torch.testing.assert_close(softmax_plus_one(inputs(query, key, value)), expected)


def test_equal_keys_and_nothing_in_common_leave_one_part_in_n_plus_one() -> None:
    query, key, _ = heads()
    rows = pattern(inputs(0 * query, key, causal=True)).sum(-1)
    torch.testing.assert_close(rows[0, 0], torch.arange(1, 10) / torch.arange(2, 11, dtype=torch.float64))


def test_a_head_that_finds_nothing_gives_nothing() -> None:
    query, key, value = heads()
    far = softmax_plus_one(inputs(100 * torch.ones_like(query), -torch.ones_like(key), value, causal=True))
    assert float(far.abs().max()) == pytest.approx(0.0, abs=1e-80)
