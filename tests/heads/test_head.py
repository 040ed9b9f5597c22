"""Heads: logits, attention, the form of the theorem, and the torch module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads.head import Head, HeadModule


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


def a_head(n: int = 9, width: int = 3, causal: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0) -> Head:
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(n, width, generator=generator, dtype=torch.float64) * 2 for _ in range(2))
    return Head(queries.to(dtype), keys.to(dtype), causal, "by hand")


@given(
    st.integers(1, 20),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_the_module_gives_the_heads_attention(n: int, width: int, causal: bool, dtype: torch.dtype) -> None:
    head = a_head(n, width, causal, dtype)
    pattern = head.module()()
    assert pattern.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(pattern, head.attention(), atol=2e-6, rtol=0)


def test_values_are_mixed_by_the_pattern() -> None:
    head = a_head(causal=True)
    value = torch.randn(4, 9, 5)
    torch.testing.assert_close(head.module()(value=value[0]), head.attention() @ value[0], atol=1e-5, rtol=0)
    inputs = torch.stack([head.module().X] * 4)
    torch.testing.assert_close(head.module()(inputs, value), head.attention() @ value, atol=1e-5, rtol=0)
    assert head.module()(value=value[0].bfloat16()).dtype == torch.bfloat16


def test_one_module_serves_every_pattern_of_its_size() -> None:
    one, other = a_head(seed=0), a_head(seed=1)
    module = one.module()
    assert torch.equal(module.W_Q, other.module().W_Q)
    torch.testing.assert_close(module(other.module().X), other.attention(), atol=2e-6, rtol=0)


def test_module_state_is_saved_and_has_no_parameters() -> None:
    module = a_head().module()
    assert list(module.parameters()) == []
    inputs, to_queries, to_keys = (torch.zeros_like(module.state_dict()[name]) for name in ("X", "W_Q", "W_K"))
    again = HeadModule(inputs, to_queries, to_keys, causal=False)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(), module())


def test_the_module_does_not_share_memory_with_the_head() -> None:
    head = a_head()
    module = head.module()
    module.X.zero_()
    assert not bool((head.queries == 0).any())


def test_heads_without_a_single_input_are_refused() -> None:
    with pytest.raises(RefusalError, match="no single input X"):
        Head(torch.ones(3, 2), torch.ones(4, 2), False, "by hand").module()
