"""Fused attention that also returns each row's log-sum-exp; its output equals the model's own call bit for bit.

`torch.nn.functional.scaled_dot_product_attention` computes the log-sum-exp of every row and drops it. The kernels under
it return it. `attend_with_lse` asks torch which kernel it would take and calls that one, so the output is equal to the
bit. If that kernel has no log-sum-exp, None is returned in its place.
"""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from attnscope.matrix.visibility import AttentionInputs, Mixed


class FusedOptions(TypedDict, total=False):
    """The options of `scaled_dot_product_attention`, by its own names and with its defaults."""

    attn_mask: Bool[Tensor, " ..."] | Float[Tensor, " ..."] | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool


def attend_with_lse(
    query: Float[Tensor, "... query dim"],
    key: Float[Tensor, "... key dim"],
    value: Float[Tensor, "... key value_dim"],
    **options: Unpack[FusedOptions],
) -> tuple[Float[Tensor, "... query value_dim"], Float[Tensor, "batch heads query"] | None]:
    """Return the output of `scaled_dot_product_attention` for the same arguments, and the log-sum-exp of its rows.

    A row that sees nothing has output 0 and, in torch's CPU kernel, log-sum-exp 0. From half-precision inputs the CPU
    kernel's log-sum-exp is good to about 1e-4 only (its exponential is short), from float32 to about 1e-6.
    """
    choice = torch._fused_sdp_choice(query, key, value, **options)
    flash = choice == SDPBackend.FLASH_ATTENTION.value
    dropout, causal, scale = options.get("dropout_p", 0.0), options.get("is_causal", False), options.get("scale")
    if flash and query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        mask = additive_mask(options.get("attn_mask"), query.dtype)
        out, lse = kernel(query, key, value, dropout, causal, attn_mask=mask, scale=scale)
        return out, lse
    # CUDA's flash kernel needs head dimensions divisible by 8, and torch pads others silently: leave these to torch.
    if flash and query.is_cuda and query.shape[-1] % 8 == 0:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse, *_ = kernel(query, key, value, dropout, causal, return_debug_mask=False, scale=scale)
        return out, lse
    return F.scaled_dot_product_attention(query, key, value, **options), None


def additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a boolean mask as 0 / -inf, as torch's own fused path passes it to the kernel."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def takes(inputs: AttentionInputs) -> bool:
    """Return whether torch's kernel returns log-sum-exps and accepts them in its backward pass, as on CPUs."""
    if inputs.query.device.type != "cpu":
        return False
    three = (inputs.query, inputs.key, inputs.value)
    choice = torch._fused_sdp_choice(*three, inputs.visible, 0.0, inputs.causal, scale=inputs.scale)
    return bool(choice == SDPBackend.FLASH_ATTENTION.value)


def sunk_attention(inputs: AttentionInputs, sink: Float[Tensor, "head 1 1"], share: Float[Tensor, "head 1 1"]) -> Mixed:
    """Mix attention with a learned sink (weight `share`) and attention without it (the rest), in one fused call.

    Every row must see a key, and every head must have keys of its own. A sink is one more logit c in a row, whose value
    is 0. With l = log sum_j e^s_j and o = softmax(s) V,

        sum_j e^s_j v_j / (e^c + sum_j e^s_j)  =  o e^l / (e^c + e^l)  =  o sigmoid(l - c)

    and the mixture of attention without it (share 1 - g) and with it (share g) is y = w o with
    w = (1 - g) + g sigmoid(l - c).

    Backward. The gradient of l with respect to s is softmax(s) = P, and the gradient of o is known, so with dO = w dy

        dS = P * (dO V^T - D) + P dl,    D = rowsum(dO * o),    dl = w' rowsum(dy * o) = (w' / w) D

    hence dS = P * (dO V^T - (1 - w'/w) D). The fused backward pass computes D itself from the output that it is given:
    given o (1 - w'/w), it returns the gradients of the whole. With w' = g sigmoid(l - c) sigmoid(c - l), w'/w is at
    most 1.
    """
    mask = additive_mask(inputs.visible, inputs.query.dtype)
    tensors = (inputs.query, inputs.key, inputs.value, sink, share)
    mixed: Tensor = _Sunk.apply(mask, inputs.causal, inputs.scale, *tensors)  # type: ignore[no-untyped-call]
    return mixed


class _Sunk(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, mask: Tensor | None, causal: bool, scale: float, *tensors: Tensor) -> Tensor:
        query, key, value, sink, share = tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
        context.save_for_backward(mask, *tensors, out, lse)
        context.rule = (causal, scale)
        kept = torch.sigmoid(lse[..., None] - sink)
        weight = (1 - share) + share * kept
        weighed: Tensor = (out * weight).to(query.dtype)
        return weighed

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        mask, query, key, value, sink, share, out, lse = context.saved_tensors
        causal, scale = context.rule
        gradient = gradients[0].to(out.dtype)
        logit = lse[..., None] - sink
        kept, taken = torch.sigmoid(logit), torch.sigmoid(-logit)
        weight = (1 - share) + share * kept
        slope = share * kept * taken  # derivative of the weight with respect to the log-sum-exp
        # Where the sink takes everything, the gradient is 0 whatever the ratio.
        ratio = torch.where(weight > 0, slope / weight, 0.0)
        back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        to_out, reduced = (gradient * weight).to(out.dtype), (out * (1 - ratio)).to(out.dtype)
        rule = {"attn_mask": mask, "scale": scale}
        to_query, to_key, to_value = back(to_out, query, key, value, reduced, lse, 0.0, causal, **rule)
        along = (gradient * out).sum(-1, keepdim=True)
        to_sink = (-slope * along).sum((0, 2), keepdim=True)[0].to(sink.dtype)
        to_share = (-taken * along).sum((0, 2), keepdim=True)[0].to(share.dtype)
        return None, None, None, to_query, to_key, to_value, to_sink, to_share
