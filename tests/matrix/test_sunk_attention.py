"""A sink computed from the log-sum-exp of one fused call: values and gradients against the pattern written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.matrix.attend import sunk_attention, takes
from attnscope.matrix.plain_attention import attention_with_share_of_sink, sink_pattern, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, for_every_head


def given(dtype: torch.dtype = torch.float64, heads: int = 3, shared: int = 3) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(2, heads, 7, 4, generator=draw, dtype=torch.float64)
    key, value = (torch.randn(2, shared, 7, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    sink = torch.tensor([-1.0, 0.5, 30.0][:heads], dtype=torch.float64)  # the last sink takes all attention
    share = torch.tensor([0.0, 0.4, 1.0][:heads], dtype=torch.float64)[:, None, None]
    return tuple(one.to(dtype).requires_grad_() for one in (query, key, value, sink, share))


def written_out(tensors: tuple[Tensor, ...], visible: Tensor | None, causal: bool) -> Tensor:
    query, key, value, sink, share = tensors
    inputs = AttentionInputs(query, key, value, visible, causal, scale=0.5)
    without, within = softmax_pattern(inputs), sink_pattern(inputs, sink)
    pattern = without + share * (within - without)
    if visible is not None:  # a row that sees nothing is 0
        pattern = pattern.masked_fill(~visible.any(-1, keepdim=True), 0.0)
    return pattern @ for_every_head(value, query.shape[1])


def some_hidden() -> Tensor:
    visible = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    visible[1, :, :, 5:] = False
    visible[0, :, 2] = False  # this one sees nothing
    return visible


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("shared", [3, 1])
def test_values_and_gradients_are_those_of_the_pattern(causal: bool, hidden: bool, shared: int) -> None:
    visible = some_hidden() if hidden else None
    tensors, others = given(shared=shared), given(shared=shared)
    query, key, value, sink, share = tensors
    assert takes(AttentionInputs(query, key, value, causal=causal, scale=0.5).unshared)
    inputs = AttentionInputs(query, key, value, visible, causal, scale=0.5)
    mixed = attention_with_share_of_sink(inputs, sink, share)
    wanted = written_out(others, visible, causal)
    # Sums of seven float64 products of numbers below 10, backwards three of them one after the other.
    assert torch.allclose(mixed, wanted, rtol=0, atol=1e-12)
    along = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine, theirs = torch.autograd.grad(mixed, tensors, along), torch.autograd.grad(wanted, others, along)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_finite_differences(causal: bool) -> None:
    def attended(query: Tensor, key: Tensor, value: Tensor, sink: Tensor, share: Tensor) -> Tensor:
        return sunk_attention(AttentionInputs(query, key, value, causal=causal, scale=0.5), sink, share)

    query, key, value, _, share = given(heads=2, shared=2)
    sink = torch.tensor([[[-1.0]], [[0.5]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attended, (query, key, value, sink, share))


def test_without_a_share_it_is_fused_attention_to_the_bit() -> None:
    query, key, value, sink, share = given(torch.float32)
    inputs = AttentionInputs(query, key, value, causal=True, scale=0.5)
    mixed = attention_with_share_of_sink(inputs, sink, torch.zeros_like(share))
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.5)
    assert torch.equal(mixed, plain)


def test_where_the_kernel_does_not_fit_two_calls_give_the_same() -> None:
    """Values of another width than queries."""
    query, key, value, sink, share = given()
    wide = torch.cat([value, value], -1)
    inputs = AttentionInputs(query, key, wide, causal=True, scale=0.5)
    mixed = attention_with_share_of_sink(inputs, sink, share)
    wanted = written_out((query, key, value, sink, share), None, True)
    assert torch.allclose(mixed[..., :4], wanted, rtol=0, atol=1e-12)
