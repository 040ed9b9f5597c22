"""Attention whose weights are products of features: phi(q_i) . phi(k_j), normalised; time and memory linear in n.

sum_j phi(q_i).phi(k_j) v_j = phi(q_i) . (sum_j phi(k_j) v_j^T): the sum in brackets is one matrix for all queries, and
under a causal mask one that grows by a term for every key. It grows here chunk by chunk: what lies before the chunk is
in the matrix, what lies inside is written out (arXiv:2402.07901, arXiv:2009.14794).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

CHUNK = 64


def factorised_attention(
    query_features: Float[Tensor, "batch head query feature"],
    key_features: Float[Tensor, "batch head key feature"],
    value: Float[Tensor, "batch head key dim"],
    *,
    real: Bool[Tensor, "#batch #head key"] | None,
    causal: bool,
    chunk: int = CHUNK,
) -> Float[Tensor, "batch head query dim"]:
    """Rows of weights phi(q) . phi(k) / sum over visible keys, times values. A row that sees nothing is 0."""
    dtype = value.dtype
    value = F.pad(value.to(key_features.dtype), (0, 1), value=1.0)  # the last column adds the weights up
    if real is not None:
        hidden = ~real[..., None]
        key_features, value = key_features.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
    if causal:
        mixed = _up_to_each(query_features, key_features, value, chunk)
    else:
        mixed = query_features @ (key_features.mT @ value)
    return divided(mixed[..., :-1], mixed[..., -1:]).to(dtype)


def factorised_pattern(
    kernel: Float[Tensor, "batch head query key"], mask: Bool[Tensor, "#batch #head #query key"] | None
) -> Float[Tensor, "batch head query key"]:
    """The weights themselves, from the products of all pairs."""
    kernel = kernel if mask is None else kernel.masked_fill(~mask, 0.0)
    return divided(kernel, kernel.sum(-1, keepdim=True))


def divided(weights: Float[Tensor, "*rows column"], total: Float[Tensor, "*rows 1"]) -> Float[Tensor, "*rows column"]:
    """A row that sees nothing has nothing to divide by."""
    empty = total == 0
    return (weights / total.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def _up_to_each(
    query: Float[Tensor, "batch head query feature"],
    key: Float[Tensor, "batch head key feature"],
    value: Float[Tensor, "batch head key dim"],
    chunk: int,
) -> Float[Tensor, "batch head query dim"]:
    queries, keys = query.shape[-2], key.shape[-2]
    before = query.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
    parts = []
    for first in range(0, queries, chunk):
        rows = query[..., first : first + chunk, :]
        mine, held = (one[..., min(first, keys) : first + chunk, :] for one in (key, value))
        inside = (rows @ mine.mT).tril()
        parts.append(rows @ before + inside @ held)
        if first + chunk < queries:
            before = before + mine.mT @ held
    return torch.cat(parts, -2)
