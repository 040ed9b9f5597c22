"""Sums over keys computed chunk by chunk equal the sums written out, for any chunk size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.matrix.linear_attention import factorised_attention
from attnscope.matrix.visibility import AttentionInputs, RealKeys


def noise(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(tokens: Tensor) -> Tensor:
    return tokens


SAME = (same, same)


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize(("queries", "keys"), [(13, 13), (7, 13), (13, 7)])
@pytest.mark.parametrize("padded", [False, True])
def test_chunks_add_up_to_the_pattern(chunk: int, queries: int, keys: int, padded: bool) -> None:
    query, key, value = noise(0, 2, 3, queries, 5), noise(1, 2, 3, keys, 5), noise(2, 2, 3, keys, 4)
    inputs = AttentionInputs(query, key, value, scale=1.0)
    real = (torch.arange(keys) != 2) & (torch.arange(keys) > 0) if padded else torch.ones(keys, dtype=torch.bool)
    for causal in (True, False):
        seen = real & (torch.ones(queries, keys, dtype=torch.bool).tril() if causal else True)
        weights = (query @ key.mT).masked_fill(~seen, 0.0)
        total = weights.sum(-1, keepdim=True)
        expected = torch.where(total > 0, weights / total.clamp_min(1e-300), 0.0) @ value
        plain = RealKeys(real[None, None] if padded else None, causal)
        found = factorised_attention(inputs, plain, SAME, chunk=chunk)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def test_a_change_leaves_earlier_answers_equal_to_the_bit_across_chunks() -> None:
    query, key, value = noise(0, 1, 1, 20, 5), noise(1, 1, 1, 20, 5), noise(2, 1, 1, 20, 4)
    past = RealKeys(None, True)
    before = factorised_attention(AttentionInputs(query, key, value, scale=1.0), past, SAME, chunk=4)
    for token in (3, 4, 9, 19):
        changed = key.clone(), value.clone()
        for one in changed:
            one[..., token:, :] *= -3
        after = factorised_attention(AttentionInputs(query, *changed, scale=1.0), past, SAME, chunk=4)
        assert torch.equal(before[..., :token, :], after[..., :token, :])
        assert not torch.equal(before[..., token:, :], after[..., token:, :])
