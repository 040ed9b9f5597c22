"""Fused attention that also returns each row's log-sum-exp, with the very output of the model's own call.

`torch.nn.functional.scaled_dot_product_attention` computes the log-sum-exp of every row and drops it. The kernels under
it return it. `attend_with_lse` asks torch which kernel it would take and calls that one, so the output is equal to the
bit. If that kernel has no log-sum-exp, None is returned in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend


def attend_with_lse(
    query: Float[Tensor, "... query dim"],
    key: Float[Tensor, "... key dim"],
    value: Float[Tensor, "... key value_dim"],
    *,
    attn_mask: Bool[Tensor, " ..."] | Float[Tensor, " ..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Float[Tensor, "... query value_dim"], Float[Tensor, "batch heads query"] | None]:
    """Return what `scaled_dot_product_attention` returns for the same arguments, and the log-sum-exp of its rows.

    A row that sees nothing has output 0 and, in torch's CPU kernel, log-sum-exp 0. From half-precision inputs the CPU
    kernel's log-sum-exp is good to about 1e-4 only (its exponential is short), from float32 to about 1e-6.
    """
    choice = torch._fused_sdp_choice(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    if choice == SDPBackend.FLASH_ATTENTION.value and query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=additive_mask(attn_mask, query.dtype), scale=scale
        )
        return out, lse
    # CUDA's flash kernel wants head dimensions in eights and torch pads others silently: leave those calls to torch.
    if choice == SDPBackend.FLASH_ATTENTION.value and query.is_cuda and query.shape[-1] % 8 == 0:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, return_debug_mask=False, scale=scale
        )
        return out, lse
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out, None


def additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a boolean mask as 0 / -inf, as torch's own fused path passes it to the kernel."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def takes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float) -> bool:
    """Return whether torch's kernel returns log-sum-exps and takes them in its backward pass: on CPUs it does."""
    if query.device.type != "cpu":
        return False
    choice = torch._fused_sdp_choice(query, key, value, mask, 0.0, causal, scale=scale)
    return bool(choice == SDPBackend.FLASH_ATTENTION.value)


def sunk_attention(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch head key dim"],
    value: Float[Tensor, "batch head key dim"],
    sink: Float[Tensor, "head 1 1"],
    share: Float[Tensor, "head 1 1"],
    *,
    mask: Tensor | None,
    causal: bool,
    scale: float,
) -> Float[Tensor, "batch head query dim"]:
    """Return `share` of attention with a learned sink plus the rest without, from one fused call.

    Every row must see a key. A sink is one more logit c in a row, whose value is 0. With l = log sum_j e^s_j and
    o = softmax(s) V,

        sum_j e^s_j v_j / (e^c + sum_j e^s_j)  =  o e^l / (e^c + e^l)  =  o sigmoid(l - c)

    and the mixture of attention without it (share 1 - g) and with it (share g) is y = w o with
    w = (1 - g) + g sigmoid(l - c).

    Backward. The gradient of l with respect to s is softmax(s) = P, and that of o is known, so with dO = w dy

        dS = P * (dO V^T - D) + P dl,    D = rowsum(dO * o),    dl = w' rowsum(dy * o) = (w' / w) D

    hence dS = P * (dO V^T - (1 - w'/w) D). The fused backward pass computes D itself from the output that it is given:
    given o (1 - w'/w), it returns the gradients of the whole. With w' = g sigmoid(l - c) sigmoid(c - l), w'/w is at
    most 1.
    """
    mixed: Tensor = _Sunk.apply(  # type: ignore[no-untyped-call]
        query, key, value, sink, share, additive_mask(mask, query.dtype), causal, scale
    )
    return mixed


class _Sunk(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor,
        share: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
    ) -> Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
        context.save_for_backward(query, key, value, sink, share, mask, out, lse)
        context.rule = (causal, scale)
        kept = torch.sigmoid(lse[..., None] - sink)
        weight = (1 - share) + share * kept
        weighed: Tensor = (out * weight).to(query.dtype)
        return weighed

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sink, share, mask, out, lse = context.saved_tensors
        causal, scale = context.rule
        gradient = gradients[0].to(out.dtype)
        logit = lse[..., None] - sink
        kept, taken = torch.sigmoid(logit), torch.sigmoid(-logit)
        weight = (1 - share) + share * kept
        slope = share * kept * taken  # of the weight, in the log-sum-exp
        # Where the sink takes everything, the gradient is 0 whatever the ratio.
        ratio = torch.where(weight > 0, slope / weight, 0.0)
        back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        to_out, reduced = (gradient * weight).to(out.dtype), (out * (1 - ratio)).to(out.dtype)
        rule = {"attn_mask": mask, "scale": scale}
        to_query, to_key, to_value = back(to_out, query, key, value, reduced, lse, 0.0, causal, **rule)
        along = (gradient * out).sum(-1, keepdim=True)
        to_sink = (-slope * along).sum((0, 2), keepdim=True)[0].to(sink.dtype)
        to_share = (-taken * along).sum((0, 2), keepdim=True)[0].to(share.dtype)
        return to_query, to_key, to_value, to_sink, to_share, None, None, None
