"""Fused attention that also hands out each row's log-sum-exp, with the very output the model would have had.

`torch.nn.functional.scaled_dot_product_attention` computes the log-sum-exp of every row and throws it away.
The functions under it return it. `attend_with_lse` asks torch which of its kernels it would take, and calls
that one, so the output is equal to the bit; where torch would take a kernel without log-sum-exp, None comes
back in its place.
"""

from __future__ import annotations

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
    """What `scaled_dot_product_attention` returns for the same arguments, and the log-sum-exp of its rows.

    A row that may see nothing has output 0 and, in torch's CPU kernel, log-sum-exp 0. From half-precision
    inputs the CPU kernel's log-sum-exp is good to about 1e-4 only (its exponential is short), from float32 to
    about 1e-6.
    """
    choice = torch._fused_sdp_choice(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    if choice == SDPBackend.FLASH_ATTENTION.value and query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            dropout_p,
            is_causal,
            attn_mask=additive_mask(attn_mask, query.dtype),
            scale=scale,
        )
        return out, lse
    # CUDA's flash kernel wants head dimensions in eights and torch pads them silently; those calls are left
    # to torch.
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
    """A boolean mask as 0 / -inf, which is how torch's own fused path hands it to the kernel."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))
