"""A head as a module attends as the head does, and its projections know no pattern."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads.head import Head, HeadModule


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


def test_it_is_saved_whole_and_trained_not_at_all() -> None:
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
