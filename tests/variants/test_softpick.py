"""Softpick: weights of 0, rows below 1, and no overflow."""

import math

import pytest
import torch
from torch import Tensor

from attnscope.variants.softpick import pattern, softpick
from tests.variants.calls import heads, inputs


def logits_as_heads(*logits: float) -> tuple[Tensor, Tensor]:
    """One query that has these logits at scale 1/2."""
    key = torch.tensor(logits, dtype=torch.float64)[None, None, :, None]
    return torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64), key


def test_a_case_by_hand() -> None:
    """Logits ln 3, 0, -ln 2: e^s - 1 = 2, 0, -1/2; weights 2/2.5, 0, 0."""
    query, key = logits_as_heads(math.log(3), 0.0, -math.log(2))
    assert pattern(inputs(query, key))[0, 0, 0].tolist() == pytest.approx([0.8, 0.0, 0.0])
    values = torch.tensor([1.0, 10, 100], dtype=torch.float64)[None, None, :, None]
    assert float(softpick(inputs(query, key, values))) == pytest.approx(0.8)


def test_rows_sum_to_at_most_one_and_negative_logits_get_no_weight() -> None:
    query, key, _ = heads()
    rows = pattern(inputs(query, key))
    assert bool((rows.sum(-1) <= 1).all())
    assert torch.equal(rows > 0, 0.5 * query @ key.mT > 0)


def test_logits_of_hundreds_do_not_overflow_in_float32() -> None:
    query, key = (one.float() for one in logits_as_heads(300.0, 299.0, -300.0))
    values = torch.eye(3)[None, None]
    e = math.e
    assert softpick(inputs(query, key, values))[0, 0, 0].tolist() == pytest.approx([e / (1 + e), 1 / (1 + e), 0.0])
