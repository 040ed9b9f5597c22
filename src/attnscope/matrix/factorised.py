"""Attention whose weights are products of features: phi(q_i) . phi(k_j), normalised; time and memory linear in n.

sum_j phi(q_i).phi(k_j) v_j = phi(q_i) . (sum_j phi(k_j) v_j^T): the sum in brackets is one matrix for all queries, and
under a causal mask one that grows by a term for every key. It grows here chunk by chunk: what lies before the chunk is
in the matrix, what lies inside is written out (arXiv:2402.07901, arXiv:2009.14794). There can be many more features
than dimensions, so that they too are made for one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

CHUNK = 64
Features = Callable[[Tensor], Tensor]
"""From tokens `[batch, head, token, dim]` to features `[batch, head, token, feature]`, each token by itself."""


def factorised_attention(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch head key dim"],
    value: Float[Tensor, "batch head key value_dim"],
    *,
    features: tuple[Features, Features],
    real: Bool[Tensor, "#batch #head key"] | None,
    causal: bool,
    chunk: int = CHUNK,
) -> Float[Tensor, "batch head query value_dim"]:
    """Rows of weights phi(q) . phi(k) / sum over visible keys, times values. A row that sees nothing is 0.

    `features` are those of queries and of keys, in the precision that the sums are to have.
    """
    of_query, of_key = features
    exact = torch.promote_types(value.dtype, torch.float32)
    held = F.pad(value.to(exact), (0, 1), value=1.0)  # the last column adds the weights up
    held = held if real is None else held.masked_fill(~real[..., None], 0.0)

    # Split once: the gradient of a slice is as long as the whole, so slices one by one would cost n^2 on the way back.
    keys_of, values_of = torch.split(key, chunk, -2), torch.split(held, chunk, -2)
    reals_of = [None] * len(keys_of) if real is None else torch.split(real, chunk, -1)

    def mine(number: int) -> tuple[Tensor, Tensor]:
        keys, seen = of_key(keys_of[number]), reals_of[number]
        return keys if seen is None else keys.masked_fill(~seen[..., None], 0.0), values_of[number]

    before: Tensor | float = 0.0  # the sum over all keys that came before
    if not causal:
        for number in range(len(keys_of)):
            keys, values = mine(number)
            before = before + keys.mT @ values
    parts = []
    for number, queries in enumerate(torch.split(query, chunk, -2)):
        rows = of_query(queries)
        mixed = rows @ before if isinstance(before, Tensor) else torch.zeros_like(held[..., :1, :])
        if causal and number < len(keys_of):
            keys, values = mine(number)
            mixed = mixed + (rows @ keys.mT).tril() @ values
            before = before + keys.mT @ values
        parts.append(mixed)
    whole = torch.cat(parts, -2)
    return divided(whole[..., :-1], whole[..., -1:]).to(value.dtype)


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
