"""The pattern that scaled_dot_product_attention uses, written out."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def attention_pattern(
    query: Float[Tensor, "*batch query width"],
    key: Float[Tensor, "*kv_batch key width"],
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Float[Tensor, "*batch query key"]:
    """Rows of softmax(scale Q K^T + mask), in float32 or better; a row that may see nothing is zero."""
    exact = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(exact), key.to(exact)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(hidden, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask
    pattern = logits.softmax(-1)
    return pattern if attn_mask is None else pattern.nan_to_num(0.0)
