"""Plain softmax attention in torch's fused kernel, and two patterns that remedies combine it with: J and a sink.

J averages the values that a query sees. Under a causal mask that is a cumulative mean, so A - J and its kin keep the
fused kernel and add O(n d). A sink is one more logit in every row whose value is 0: one more key.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.attend import sunk_attention, takes
from attnscope.matrix.visibility import (
    Key,
    Mixed,
    Query,
    Value,
    Visible,
    Weights,
    for_every_head,
    real_keys,
    scores,
    seen,
    softmax_rows,
)

Sink = Float[Tensor, " head"]


def plain_attention(query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float) -> Mixed:
    """softmax(scale Q K^T) V; a row that sees nothing is 0."""
    heads = query.shape[1]
    key, value = for_every_head(key, heads), for_every_head(value, heads)
    if visible is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    mask = seen(query.shape[-2], key.shape[-2], visible, causal, query.device)
    assert mask is not None
    # Softmax over nothing is NaN, and so is its gradient: such a row sees everything, and is set to 0 afterwards.
    blind = ~mask.any(-1, keepdim=True)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | blind, scale=scale)
    return mixed.masked_fill(blind, 0.0)


def softmax_pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float) -> Weights:
    """Return the weights of `plain_attention`."""
    return softmax_rows(scores(query, key, visible, causal, scale))


def uniform_pattern(query: Query, key: Key, *, visible: Visible, causal: bool) -> Weights:
    """J: every key that a query sees weighs the same."""
    return softmax_pattern(torch.zeros_like(query), torch.zeros_like(key), visible=visible, causal=causal, scale=1.0)


def mean_of_visible(
    query: Query, value: Value, *, visible: Visible, causal: bool
) -> Float[Tensor, "batch head #query value_dim"]:
    """Return J V in O(n d): one mean for all queries, or the mean of all earlier values."""
    queries, keys = query.shape[-2], value.shape[-2]
    plain = real_keys(visible, causal, queries)
    if plain is None:  # each query has its own mask: add up what each sees
        mask = seen(queries, keys, visible, causal, query.device)
        assert mask is not None
        return _divided(mask.to(value.dtype) @ for_every_head(value, query.shape[1]), mask.sum(-1, keepdim=True))
    value = for_every_head(value, query.shape[1])
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


def attention_with_sink(
    query: Query, key: Key, value: Value, sink: Sink | None, *, visible: Visible, causal: bool, scale: float
) -> Mixed:
    """e^s / (e^sink + sum e^s): softmax with one more key, whose logit is `sink` for every query and whose value is 0.

    Without `sink` that logit is 0, and the key is 0. Otherwise queries and keys get one more coordinate for it, and so
    do the values, because the fused kernel wants one width for all three.
    """
    heads, width = query.shape[1], value.shape[-1]
    key, value = for_every_head(key, heads), for_every_head(value, heads)
    if sink is None:
        key = F.pad(key, (0, 0, 1, 0))
    else:
        logit = (sink.to(key.dtype) / scale)[None, :, None, None].expand(key.shape[0], -1, 1, 1)
        drain = torch.cat([torch.zeros_like(key[..., :1, :]), logit], -1)
        query, key = F.pad(query, (0, 1), value=1.0), torch.cat([drain, F.pad(key, (0, 1))], -2)
        value = F.pad(value, (0, 1))
    value = F.pad(value, (0, 0, 1, 0))
    if visible is None and causal:
        # The key in front shifts all others by one place, so an unused query goes in front as well.
        query = F.pad(query, (0, 0, 1, 0))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)[..., 1:, :width]
    mask = seen(query.shape[-2], key.shape[-2] - 1, visible, causal, query.device)
    mask = None if mask is None else F.pad(mask, (1, 0), value=True)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)[..., :width]


def attention_with_share_of_sink(
    query: Query,
    key: Key,
    value: Value,
    sink: Sink,
    share: Float[Tensor, "head 1 1"],
    *,
    visible: Visible,
    causal: bool,
    scale: float,
) -> Mixed:
    """Return (1 - share) of attention without the sink plus `share` of attention with it.

    This takes one fused call where the kernel returns its log-sum-exp (`sunk_attention`), else two.
    """
    heads = query.shape[1]
    spread, values = for_every_head(key, heads), for_every_head(value, heads)
    mask = blind = None
    if visible is not None:
        mask = seen(query.shape[-2], key.shape[-2], visible, causal, query.device)
        assert mask is not None
        blind = ~mask.any(-1, keepdim=True)  # sees everything, and is set to 0 afterwards, as in `plain_attention`
        mask = mask | blind
    alone = causal and mask is None  # a mask already contains it
    if value.shape[-1] == query.shape[-1] and takes(query, spread, values, mask, alone, scale):
        logit = sink.to(share.dtype)[:, None, None]
        mixed = sunk_attention(query, spread, values, logit, share, mask=mask, causal=alone, scale=scale)
        return mixed if blind is None else mixed.masked_fill(blind, 0.0)
    without = plain_attention(query, key, value, visible=visible, causal=causal, scale=scale)
    within = attention_with_sink(query, key, value, sink, visible=visible, causal=causal, scale=scale)
    return without + share * (within - without)


def sink_pattern(query: Query, key: Key, sink: Sink, *, visible: Visible, causal: bool, scale: float) -> Weights:
    """Return the weights of `attention_with_sink` on the real keys."""
    logits = scores(query, key, visible, causal, scale)
    extra = sink.to(logits.dtype)[None, :, None, None].expand(*logits.shape[:-1], 1)
    return torch.cat([extra, logits], -1).softmax(-1)[..., 1:]


def _divided(total: Float[Tensor, "*rows value_dim"], count: torch.Tensor) -> Float[Tensor, "*rows value_dim"]:
    """Divide sums by their counts. A sum over nothing stays 0."""
    return total / count.clamp_min(1)
