"""Sigmoid attention: each weight by itself."""

import torch

from attnscope.variants.sigmoid import pattern, sigmoid
from tests.variants.calls import heads, inputs

NONE = torch.zeros(2, dtype=torch.float64)


def test_without_logits_a_row_of_n_keys_sums_to_n_over_n_plus_one() -> None:
    """sigmoid(-ln n) = 1/(n + 1); under a causal mask n counts what came before."""
    query, key, _ = heads()
    rows = pattern(inputs(0 * query, key, causal=True), bias=NONE).sum(-1)
    torch.testing.assert_close(rows[0, 0], torch.arange(1, 10) / torch.arange(2, 11, dtype=torch.float64))


def test_a_weight_depends_on_its_own_key_alone() -> None:
    query, key, value = heads()
    other = key.clone()
    other[..., 4, :] = 5.0
    before, after = (pattern(inputs(query, one), bias=NONE) for one in (key, other))
    kept = [column for column in range(9) if column != 4]
    assert torch.equal(before[..., kept], after[..., kept])
    assert not torch.equal(before[..., 4], after[..., 4])
    torch.testing.assert_close(sigmoid(inputs(query, key, value), bias=NONE), before @ value)
