from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.matrix.visibility import row_mean, sequences, spread_tokens


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
