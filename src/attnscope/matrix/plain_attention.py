"""Plain softmax attention in torch's fused kernel, and two patterns that remedies combine it with: J and a sink.

J averages the values that a query sees. Under a causal mask that is a cumulative mean, so A - J and similar patterns
use the fused kernel at an extra cost of O(n d). A sink is one more logit in every row whose value is 0: one more key.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.attend import sunk_attention, takes
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights, for_every_head, scores, softmax_rows


def plain_attention(inputs: AttentionInputs) -> Mixed:
    """Return softmax(scale Q K^T) V; a row that sees nothing is 0."""
    whole, scale = inputs.unshared, inputs.scale
    query, key, value = whole.query, whole.key, whole.value
    if inputs.visible is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=inputs.causal, scale=scale)
    mask = inputs.mask
    assert mask is not None
    # Softmax over nothing is NaN, and so is its gradient: such a row sees everything, and is set to 0 afterwards.
    blind = ~mask.any(-1, keepdim=True)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | blind, scale=scale)
    return mixed.masked_fill(blind, 0.0)


def softmax_pattern(inputs: AttentionInputs) -> Weights:
    """Return the weights of `plain_attention`."""
    return softmax_rows(scores(inputs))


def uniform_pattern(inputs: AttentionInputs) -> Weights:
    """Return J, in which every key that a query sees has the same weight."""
    query, key = torch.zeros_like(inputs.query), torch.zeros_like(inputs.key)
    return softmax_pattern(replace(inputs, query=query, key=key, scale=1.0))


def mean_of_visible(inputs: AttentionInputs) -> Float[Tensor, "batch head #query value_dim"]:
    """Return J V in O(n d): one mean for all queries or, if causal, the mean of all values so far."""
    queries, keys = inputs.query.shape[-2], inputs.value.shape[-2]
    plain = inputs.real_keys()
    value = for_every_head(inputs.value, inputs.query.shape[1])
    if plain is None:  # each query has its own mask: sum the values that each sees
        mask = inputs.mask
        assert mask is not None
        return _divided(mask.to(value.dtype) @ value, mask.sum(-1, keepdim=True))
    if plain.real is None and not plain.causal:
        return value.mean(dim=-2, keepdim=True)
    exact = value.to(torch.promote_types(value.dtype, torch.float32))
    if plain.real is None:
        counted = torch.ones(1, 1, keys, 1, dtype=torch.long, device=value.device)
    else:
        exact, counted = exact.masked_fill(~plain.real[..., None], 0.0), plain.real[..., None].long()
    if not plain.causal:
        return _divided(exact.sum(-2, keepdim=True), counted.sum(-2, keepdim=True)).to(value.dtype)
    upto = torch.arange(queries, device=value.device).clamp_max(keys - 1)
    return _divided(exact.cumsum(-2)[..., upto, :], counted.cumsum(-2)[..., upto, :]).to(value.dtype)


def attention_with_sink(inputs: AttentionInputs, sink: PerHead | None = None) -> Mixed:
    """Return attention e^s / (e^sink + sum e^s), with one more key whose logit is `sink` and whose value is 0.

    Without `sink` that logit is 0, and the key is 0. Otherwise queries and keys get one more coordinate for it, and so
    do the values, because the fused kernel needs the same width for all three.
    """
    whole, scale = inputs.unshared, inputs.scale
    query, key, value = whole.query, whole.key, whole.value
    width = value.shape[-1]
    if sink is None:
        key = F.pad(key, (0, 0, 1, 0))
    else:
        logit = (sink.to(key.dtype) / scale)[None, :, None, None].expand(key.shape[0], -1, 1, 1)
        drain = torch.cat([torch.zeros_like(key[..., :1, :]), logit], -1)
        query, key = F.pad(query, (0, 1), value=1.0), torch.cat([drain, F.pad(key, (0, 1))], -2)
        value = F.pad(value, (0, 1))
    value = F.pad(value, (0, 0, 1, 0))
    if inputs.visible is None and inputs.causal:
        # The key in front shifts all others by one place, so an unused query goes in front as well.
        query = F.pad(query, (0, 0, 1, 0))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)[..., 1:, :width]
    mask = inputs.mask
    mask = None if mask is None else F.pad(mask, (1, 0), value=True)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)[..., :width]


def attention_with_share_of_sink(inputs: AttentionInputs, sink: PerHead, share: Float[Tensor, "head 1 1"]) -> Mixed:
    """Return (1 - share) of attention without the sink plus `share` of attention with it.

    This takes one fused call where the kernel returns its log-sum-exp (`sunk_attention`), else two.
    """
    fused, blind = inputs.unshared, None
    if inputs.visible is not None:
        mask = inputs.mask
        assert mask is not None
        blind = ~mask.any(-1, keepdim=True)  # such rows see everything, then become 0, as in `plain_attention`
        fused = replace(fused, visible=mask | blind, causal=False)
    if fused.value.shape[-1] == fused.query.shape[-1] and takes(fused):
        mixed = sunk_attention(fused, sink.to(share.dtype)[:, None, None], share)
        return mixed if blind is None else mixed.masked_fill(blind, 0.0)
    without, within = plain_attention(inputs), attention_with_sink(inputs, sink)
    return without + share * (within - without)


def sink_pattern(inputs: AttentionInputs, sink: PerHead) -> Weights:
    """Return the weights of `attention_with_sink` on the real keys."""
    logits = scores(inputs)
    extra = sink.to(logits.dtype)[None, :, None, None].expand(*logits.shape[:-1], 1)
    return torch.cat([extra, logits], -1).softmax(-1)[..., 1:]


def _divided(total: Float[Tensor, "*rows value_dim"], count: torch.Tensor) -> Float[Tensor, "*rows value_dim"]:
    """Divide sums by their counts. A sum over nothing stays 0."""
    return total / count.clamp_min(1)
