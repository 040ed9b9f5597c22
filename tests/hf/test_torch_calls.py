"""Watches of torch functions: equal bits, log-sum-exps, and only those softmaxes that are attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.hf.intercepting.masks import MaskReader, dense_pattern
from attnscope.hf.intercepting.observed_call import observe_fused, observe_written_out
from attnscope.hf.intercepting.torch_calls import (
    FusedCall,
    Seen,
    SoftmaxWatch,
    WrittenOutCall,
    fused_attention,
    unwatched,
)

KINDS = ["none", "causal", "boolean", "bias", "square", "empty rows"]


def fused_inputs(kind: str, dtype: torch.dtype, grouped: bool) -> dict[str, object]:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 6, 8, generator=generator).to(dtype)
    key = torch.randn(2, 2 if grouped else 4, 6, 8, generator=generator).to(dtype)
    value = torch.randn(2, 2 if grouped else 4, 6, 8, generator=generator).to(dtype)
    mask: Tensor | None = None
    if kind == "boolean":
        mask = torch.rand(2, 1, 6, 6, generator=generator) > 0.4
        mask[..., 0] = True
    if kind == "bias":
        mask = torch.randn(2, 4, 6, 6, generator=generator).to(dtype)
    if kind == "square":
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
    if kind == "empty rows":
        mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
        mask[0, :, :, :2] = False
    return {
        "query": query,
        "key": key,
        "value": value,
        "attn_mask": mask,
        "is_causal": kind == "causal",
        "enable_gqa": grouped,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_attention_has_the_same_bits(kind: str, dtype: torch.dtype, grouped: bool) -> None:
    inputs = fused_inputs(kind, dtype, grouped)
    expected = F.scaled_dot_product_attention(**inputs)  # type: ignore[arg-type]
    call = fused_attention(**inputs)  # type: ignore[arg-type]
    assert torch.equal(call.output, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_log_sum_exps_are_those_of_the_logits(kind: str) -> None:
    call = fused_attention(**fused_inputs(kind, torch.float32, grouped=True))  # type: ignore[arg-type]
    assert call.lse is not None
    scores = observe_fused(call, MaskReader()).scores
    pattern = dense_pattern(scores)
    key = scores.key.double().repeat_interleave(2, dim=1)
    logits = scores.scale * scores.query.double() @ key.transpose(-1, -2)
    if scores.bias is not None:
        logits = logits + scores.bias
    reached = pattern.sum(-1) > 0
    implied = (logits - pattern.log()).masked_fill(pattern == 0, float("-inf")).amax(-1)
    assert float((implied - call.lse)[reached].abs().max()) < 1e-5


def test_kernel_without_log_sum_exps_is_accepted() -> None:
    query = torch.randn(1, 2, 3, 4)
    value = torch.randn(1, 2, 3, 6)  # values wider than keys: no flash kernel
    call = fused_attention(query, query, value)
    assert call.lse is None
    assert torch.equal(call.output, F.scaled_dot_product_attention(query, query, value))


def written_out(softmax: Callable[[Tensor], Tensor]) -> list[Seen]:
    seen: list[Seen] = []
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    with SoftmaxWatch(seen.append):
        probabilities = softmax(query @ key.transpose(-1, -2) / 8**0.5)
        torch.matmul(F.dropout(probabilities, 0.1, training=False).to(torch.float32).contiguous(), value)
    return seen


@pytest.mark.parametrize(
    "softmax",
    [
        lambda s: F.softmax(s, dim=-1),
        lambda s: torch.softmax(s, -1),
        lambda s: s.softmax(dim=3),
        lambda s: nn.Softmax(dim=-1)(s),
        lambda s: F.softmax(s.float(), dim=-1, dtype=torch.float32).type_as(s),
    ],
)
def test_every_way_to_write_softmax(softmax: Callable[[Tensor], Tensor]) -> None:
    (call,) = written_out(softmax)
    assert isinstance(call, WrittenOutCall)
    observed = observe_written_out(call, heads=4, batch=None)
    assert observed.scores.pattern is not None
    assert observed.scores.query.shape == (2, 4, 5, 8)
    rebuilt = (observed.scores.query @ observed.scores.key.transpose(-1, -2) / 8**0.5).softmax(-1)
    assert torch.allclose(rebuilt, observed.scores.pattern)
    assert torch.allclose(observed.mixed.transpose(1, 2), observed.scores.pattern @ observed.value)


def test_einsum_and_merged_heads_give_one_layout() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 5, 2, 4, 8, generator=generator).unbind()  # [token, batch, head, dim]
    seen: list[Seen] = []
    with SoftmaxWatch(seen.append):
        logits = torch.einsum("ibnd,jbnd->bnij", query, key)
        torch.einsum("bnij,jbnd->ibnd", logits.softmax(-1), value)
        flat = [t.permute(1, 2, 0, 3).reshape(8, 5, 8) for t in (query, key, value)]
        torch.bmm(torch.bmm(flat[0], flat[1].transpose(1, 2)).softmax(-1), flat[2])
    one, two = (observe_written_out(call, heads=4, batch=2) for call in seen if isinstance(call, WrittenOutCall))
    for left, right in ((one.value, two.value), (one.mixed, two.mixed), (one.scores.query, two.scores.query)):
        assert torch.allclose(left, right, atol=1e-6)
    assert one.scores.pattern is not None
    assert two.scores.pattern is not None
    assert torch.allclose(one.scores.pattern, two.scores.pattern, atol=1e-6)


def test_softmaxes_of_routers_and_classifiers_are_ignored() -> None:
    seen: list[Seen] = []
    hidden, experts = torch.randn(2, 5, 3), torch.randn(2, 5, 3, 8)
    with SoftmaxWatch(seen.append):
        gates = hidden.softmax(-1)
        torch.einsum("bne,bned->bnd", gates, experts)  # a weighted sum per token mixes no tokens
        torch.randn(4, 7).softmax(-1) @ torch.randn(7, 2)
        (torch.randn(2, 3, 5).softmax(1)) @ torch.randn(2, 5, 4)
    assert seen == []


def test_a_muted_watch_sees_nothing() -> None:
    seen: list[Seen] = []
    watch = SoftmaxWatch(seen.append)
    q = torch.randn(1, 2, 3, 4)
    with watch, unwatched():
        F.scaled_dot_product_attention(q, q, q)
    with unwatched(), watch:
        F.scaled_dot_product_attention(q, q, q)
    assert len(seen) == 1
    assert isinstance(seen[0], FusedCall)


def test_one_head_without_a_head_axis() -> None:
    seen: list[Seen] = []
    q = torch.randn(2, 3, 4)
    with SoftmaxWatch(seen.append):
        F.scaled_dot_product_attention(q, q, q)
    (call,) = seen
    assert isinstance(call, FusedCall)
    observed = observe_fused(call, MaskReader())
    assert observed.scores.query.shape == (2, 1, 3, 4)
    assert observed.mixed.shape == (2, 3, 1, 4)
