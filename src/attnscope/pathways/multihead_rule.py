"""torch's own nn.MultiheadAttention, which runs as one function: written out in functions that have rules."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.pathways.freezing import Rule, freeze_answer
from attnscope.pathways.graded import Frozen, Graded, plain

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
_RARE = ("bias_k", "bias_v", "use_separate_proj_weight", "add_zero_attn", "static_k", "static_v")


def _multihead(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """The answer is (mixed tokens, averaged patterns or None)."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    values = given["value"]
    unusual = any(given[key] is not None and given[key] is not False for key in _RARE)
    if not isinstance(values, Graded) or values.value.ndim != 3 or unusual:
        return freeze_answer(func, name, args, kwargs, value)
    with torch._C._EnableTorchFunction():
        mixed = _written_out(given, values)
    cell = mixed.deferred
    first = values.made(value[0], cell, gated=False)
    return first, None if value[1] is None else Frozen.of(value[1], name)


def _written_out(given: dict[str, Any], values: Graded) -> Graded:
    """[token, batch, width] in and out."""
    heads, (weight_q, weight_k, weight_v) = given["num_heads"], given["in_proj_weight"].chunk(3)
    biases = (None, None, None) if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)

    def split(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        projected = F.linear(x, weight, bias)
        return projected.reshape(*projected.shape[:2], heads, -1).permute(1, 2, 0, 3)  # [batch, head, token, channel]

    q = split(plain(given["query"]), weight_q, biases[0])
    k = split(plain(given["key"]), weight_k, biases[1])
    v = split(values, weight_v, biases[2])
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=_mask(given, q, k))
    tokens = mixed.permute(2, 0, 1, 3).reshape(q.shape[2], q.shape[0], -1)
    answer = F.linear(tokens, given["out_proj_weight"], given["out_proj_bias"])
    assert isinstance(answer, Graded)
    return answer


def _mask(given: dict[str, Any], q: Tensor, k: Tensor) -> Tensor | None:
    """Both masks of torch, to be added to the logits."""
    total = None
    for key in ("attn_mask", "key_padding_mask"):
        mask = plain(given[key])
        if mask is None:
            continue
        if mask.dtype == torch.bool:  # True: not seen
            mask = q.new_zeros(mask.shape).masked_fill(mask, -torch.inf)
        if key == "key_padding_mask":
            mask = mask[:, None, None, :]
        elif mask.ndim == 3:
            mask = mask.reshape(q.shape[0], -1, *mask.shape[1:])
        total = mask if total is None else total + mask
    return total


RULES: dict[str, Rule] = {"multi_head_attention_forward": _multihead}
