"""Masks: which of them are only a list of real keys, and what heads share; batches in groups of sequences."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.matrix.plain_attention import mean_of_visible, plain_attention, uniform_pattern
from attnscope.matrix.visibility import AttentionInputs, for_every_head, row_mean, sequences, spread_tokens

TOKENS = 6
PAST = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
VALUES = torch.randn(2, 2, TOKENS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
REAL = torch.tensor([False, True, True, True, True, False])


def inputs(name: str) -> AttentionInputs:
    """Logits of 0, and keys and values that two heads share, under a mask."""
    visible, causal = masks()[name]
    query = torch.zeros(2, 4, TOKENS, 3, dtype=torch.float64)
    return AttentionInputs(query, VALUES, VALUES, visible, causal, scale=1.0)


def masks() -> dict[str, tuple[Tensor | None, bool]]:
    """Return masks, with and without the causal flag, by their meaning."""
    return {
        "nothing": (None, False),
        "the flag": (None, True),
        "a list": (REAL[None, None, None], False),
        "a list and the flag": (REAL[None, None, None], True),
        "a list for each query": (REAL.expand(TOKENS, TOKENS)[None, None], False),
        "a list for each query and the flag": ((REAL & PAST)[None, None], True),
        "the past written out": (PAST[None, None], False),
        "the past and a list": ((REAL & PAST)[None, None], False),
        "packed texts": (torch.block_diag(*[torch.ones(2, 2)] * 3).bool()[None, None], False),
        "a window": (PAST.triu(-2)[None, None], True),
    }


@pytest.mark.parametrize("name", masks())
def test_a_mask_is_reduced_to_a_list_of_keys_or_to_none(name: str) -> None:
    visible, causal = masks()[name]
    found = inputs(name).real_keys()
    assert (found is None) == (name in ("packed texts", "a window"))
    if found is not None:
        listed = torch.ones(TOKENS, dtype=torch.bool) if found.real is None else found.real[0, 0]
        said = listed & PAST if found.causal else listed.expand(TOKENS, TOKENS)
        meant = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if visible is None else visible[0, 0]
        assert torch.equal(said, (meant & PAST if causal else meant).expand(TOKENS, TOKENS))


@pytest.mark.parametrize("name", masks())
def test_the_mean_of_what_is_seen_is_the_uniform_pattern(name: str) -> None:
    found = mean_of_visible(inputs(name)).expand(2, 4, TOKENS, 3)
    torch.testing.assert_close(found, uniform_pattern(inputs(name)) @ for_every_head(VALUES, 4))
    torch.testing.assert_close(plain_attention(inputs(name)), found)


def test_some_heads_keep_their_own_keys_and_masks() -> None:
    visible = torch.rand(2, 4, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)) > 0.3
    whole = replace(inputs("nothing"), query=torch.randn(2, 4, TOKENS, 3, dtype=torch.float64), visible=visible)
    assert torch.equal(plain_attention(whole.of_heads([3, 1])), plain_attention(whole)[:, [3, 1]])


def test_neighbouring_heads_share_keys() -> None:
    shared = torch.arange(2.0)[None, :, None, None]
    assert for_every_head(shared, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("most_bytes", [1, 200, 1 << 20])
def test_groups_give_the_batch_back_in_order(most_bytes: int):
    stream = torch.randn(5, 4, 3)
    groups = list(sequences(stream, None, most_bytes))
    assert torch.equal(torch.cat([some.tokens for some in groups]), stream)
    assert all(some.padding is None for some in groups)
    assert len(groups) == {1: 5, 200: 2, 1 << 20: 1}[most_bytes]


def test_padding_becomes_zero_and_the_stream_is_left_alone():
    stream = torch.full((2, 4, 3), 2.0, dtype=torch.bfloat16)
    stream[0, :2] = torch.nan
    mask = torch.tensor([[False, False, True, True], [True, True, True, False]])
    before = stream.clone()
    some = torch.cat([group.tokens for group in sequences(stream, mask)])
    assert some.dtype == torch.float32
    assert torch.equal(some, torch.where(mask[..., None], 2.0, 0.0).expand(2, 4, 3))
    assert torch.equal(stream.isnan(), before.isnan())
    groups = list(sequences(stream, mask))
    assert torch.cat([group.count for group in groups]).tolist() == [2.0, 3.0]
    assert torch.cat([group.number() for group in groups]).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


def test_a_stream_without_padding_is_not_copied():
    stream = torch.randn(2, 4, 3)
    (some,) = sequences(stream, torch.ones(2, 4, dtype=torch.bool))
    assert some.tokens.data_ptr() == stream.data_ptr()


def test_row_mean_counts_real_rows_only():
    rows = torch.tensor([[[1.0, 3.0, torch.nan]], [[5.0, 6.0, 7.0]], [[1.0, 1.0, 1.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    assert row_mean(rows, mask).flatten().tolist() == [2.0, 6.0, 0.0]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 12))
def test_spread_tokens_are_real_distinct_ordered_and_even(real: list[bool], most: int):
    mask = torch.tensor([real])
    token, used = spread_tokens(mask, most)
    chosen = token[0, used[0]].tolist()
    count = sum(real)
    assert len(chosen) == min(count, most)
    assert all(real[t] for t in chosen)
    assert chosen == sorted(set(chosen))
    ranks = [sum(real[:t]) for t in chosen]
    steps = {b - a for a, b in pairwise(ranks)}
    assert len(steps) <= 1 or max(steps) - min(steps) == 1
