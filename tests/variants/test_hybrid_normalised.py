"""The mix of softmax and doubly normalised attention."""

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.matrix.gate import doubly_normalised_pattern
from attnscope.variants.hybrid_normalised import hybrid_normalised, pattern
from tests.variants.calls import heads, inputs, softmax


def test_each_head_has_its_own_share_between_the_two() -> None:
    query, key, value = heads()
    doubly = doubly_normalised_pattern(inputs(query, key)) @ value
    found = hybrid_normalised(inputs(query, key, value), share=torch.tensor([1.0, 0.25], dtype=torch.float64))
    torch.testing.assert_close(found[:, 0], doubly[:, 0])
    torch.testing.assert_close(found[:, 1], (0.75 * softmax(query, key) @ value + 0.25 * doubly)[:, 1])


def test_no_key_loses_more_than_its_share_of_one_nth() -> None:
    query, key, _ = heads(tokens=12)
    rows = pattern(inputs(9 * query, key), share=torch.full((2,), 0.4, dtype=torch.float64))
    assert float(rows.sum(-2).min()) >= 0.4 / 12


def test_causal_models_are_refused() -> None:
    with pytest.raises(RefusalError, match="cannot be causal"):
        hybrid_normalised(inputs(*heads(), causal=True), share=torch.zeros(2, dtype=torch.float64))
