"""Compressed keys and values: how many there are, and what they are made of."""

import math

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.core.variant import Size
from attnscope.variants.compressed import compressed, pattern
from tests.variants.calls import heads, inputs, softmax

SIZE = Size(heads=2, dim=4, width=8)


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 13])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_there_are_as_many_columns_as_strides_and_rows_sum_to_one(tokens: int, stride: int) -> None:
    query, key, _ = heads(tokens)
    own = {name: one.double() for name, one in compressed.start(SIZE, kernel=3).items()}
    for causal in (False, True):
        rows = pattern(inputs(query, key, causal=causal), **own, stride=stride)
        assert rows.shape[-1] == math.ceil(tokens / stride)
        torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]))


def test_a_kernel_of_one_token_at_every_token_is_full_attention() -> None:
    query, key, value = heads()
    own = {name: one.double() for name, one in compressed.start(SIZE, kernel=1).items()}
    found = compressed(inputs(query, key, value), **own, stride=1)
    torch.testing.assert_close(found, softmax(query, key) @ value)
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    found = compressed(inputs(query, key, value, causal=True), **own, stride=1)
    torch.testing.assert_close(found, softmax(query, key, seen=past) @ value)


def test_the_start_takes_means() -> None:
    query, key, value = heads(8)
    own = {name: one.double() for name, one in compressed.start(SIZE, kernel=4).items()}
    two = [one.unflatten(-2, (2, 4)).mean(-2) for one in (key, value)]
    found = compressed(inputs(query, key, value), **own, stride=4)
    torch.testing.assert_close(found, softmax(query, two[0]) @ two[1])


def test_a_mask_that_cuts_through_an_anchor_is_refused() -> None:
    own = {name: one.double() for name, one in compressed.start(SIZE).items()}
    near = torch.ones(9, 9, dtype=torch.bool).triu(-2)[None, None]
    with pytest.raises(RefusalError, match="padding and later tokens"):
        compressed(inputs(*heads(), visible=near), **own)
