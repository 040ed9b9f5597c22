"""A head as tensors: scale, mask, precision of its logits, and the fixed projections of the theorem."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.heads.head import Head


def some(n: int, n_keys: int, width: int, dtype: torch.dtype = torch.float64, causal: bool = False) -> Head:
    noise = torch.Generator().manual_seed(0)
    queries = torch.randn(n, width, generator=noise, dtype=torch.float64)
    keys = torch.randn(n_keys, width, generator=noise, dtype=torch.float64)
    return Head(queries.to(dtype), keys.to(dtype), causal, "chance")


def test_attention_is_that_of_torch() -> None:
    head = some(5, 5, 4, causal=True)
    values = torch.eye(5, dtype=torch.float64)[None]
    theirs = torch.nn.functional.scaled_dot_product_attention(
        head.queries[None], head.keys[None], values, is_causal=True
    )[0]
    assert torch.allclose(head.attention(), theirs, atol=1e-12)


def test_slices_of_rows_keep_their_place_under_the_mask() -> None:
    head = some(7, 7, 3, causal=True)
    assert torch.allclose(head.logits(2, 5), head.logits()[2:5], rtol=1e-12)
    assert torch.equal(head.logits().isinf(), torch.ones(7, 7, dtype=torch.bool).triu(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_of_low_precision_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    head = some(4, 6, 32, dtype)
    exact = head.queries.double() @ head.keys.double().T / np.sqrt(32)
    assert head.logits().dtype == torch.float32
    assert torch.allclose(head.logits().double(), exact, atol=2e-6)


def test_the_input_and_its_two_fixed_projections_give_the_head_back() -> None:
    head, other = some(6, 6, 3), some(6, 6, 3, torch.float64, causal=True)
    x, query, key = head.inputs()
    assert torch.equal(x @ query, head.queries)
    assert torch.equal(x @ key, head.keys)
    assert torch.equal(query, other.inputs()[1])
    assert torch.equal(key, other.inputs()[2])
    assert (head.n, head.width, head.dtype, head.scale) == (6, 3, "float64", 3**-0.5)


def test_a_rectangular_head_has_no_single_input() -> None:
    with pytest.raises(RefusalError, match="4 queries and 6 keys"):
        some(4, 6, 3).inputs()
