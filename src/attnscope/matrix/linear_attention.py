"""Linear attention: products of features, and memories of fixed size.

Features. sum_j phi(q_i).phi(k_j) v_j = phi(q_i) . (sum_j phi(k_j) v_j^T): the sum in brackets is one matrix for all
queries, and under a causal mask one that grows by a term for every key. Here it grows chunk by chunk: keys before the
chunk are in the matrix, keys inside are computed directly (arXiv:2402.07901, arXiv:2009.14794). There can be many more
features than dimensions, so they too are computed for one chunk at a time. Time and memory are linear in n.

A memory of fixed size is a matrix S that every token writes into and reads from (arXiv:2602.01763):

    sum          S_t = S_(t-1) + v_t k_t^T                            linear attention without a normaliser
    delta rule   S_t = S_(t-1) + (v_t - S_(t-1) k_t) k_t^T            v_t replaces what is stored under k_t

and token t reads S_t q_t. Written out over tokens, the sum is (tril(Q K^T)) V. For the delta rule let u_t = v_t -
S_(t-1) k_t, so that S_t = sum_{s<=t} u_s k_s^T and u_t = v_t - sum_{s<t} (k_s.k_t) u_s, which is

    (I + tril(K K^T, -1)) U = V,     answers tril(Q K^T) U:

one triangular system instead of a loop. A key shorter than 1 replaces the share |k|^2 of the stored value, a key of 0
nothing.

How much such a memory holds. Store pairs with keys from one random orthonormal basis of width d after the other, values
independent with mean square 1, and ask for all m of them:

    up to d pairs      nothing is wrong: S k_a = v_a for orthonormal keys, in both
    beyond, delta      mean squared error 2 (1 - d/m). With r = m mod d pairs of the newest basis, P their projection, a
                       key of the basis before is wrong by -sum_i v_i k_i.P k_a + sum_j v_j k_j.k_a, 2 |P k_a|^2 = 2r/d
                       in the mean; all older ones by v_a and by what is stored instead, 1 + 1; the newest by nothing:
                       (2r + 2 (m - d - r)) / m.
    beyond, sum        |k_j.k_a|^2 from all pairs of other bases, 1/d each: (m^2 - sum of (pairs of a basis)^2) / (md)
    any linear map     at least 1 - d/m: S K has rank d, and m independent values lie in no smaller space
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.visibility import AttentionInputs, Mixed, RealKeys

CHUNK = 64
Queries = Float[Tensor, "*batch query dim"]
Keys = Float[Tensor, "*batch key dim"]
Seen = Bool[Tensor, "*#batch #query key"] | None
Features = Callable[[Tensor], Tensor]
"""A function from tokens `[batch, head, token, dim]` to features `[batch, head, token, feature]`, token by token."""


def factorised_attention(
    inputs: AttentionInputs, plain: RealKeys, features: tuple[Features, Features], *, chunk: int = CHUNK
) -> Mixed:
    """Return attention with weights phi(q) . phi(k), divided by their sum over visible keys. A row that sees nothing is
    0.

    Every head must have keys of its own, and `plain` is the mask. `features` are the feature maps of queries and of
    keys, which return the precision of the sums.
    """
    (of_query, of_key), (real, causal), value = features, plain, inputs.value
    exact = torch.promote_types(value.dtype, torch.float32)
    held = F.pad(value.to(exact), (0, 1), value=1.0)  # the last column sums the weights
    held = held if real is None else held.masked_fill(~real[..., None], 0.0)

    # Split once: the gradient of a slice is as long as the whole, so single slices would cost n^2 in the backward pass.
    keys_of, values_of = torch.split(inputs.key, chunk, -2), torch.split(held, chunk, -2)
    reals_of = [None] * len(keys_of) if real is None else torch.split(real, chunk, -1)

    def chunk_at(number: int) -> tuple[Tensor, Tensor]:
        keys, seen = of_key(keys_of[number]), reals_of[number]
        return keys if seen is None else keys.masked_fill(~seen[..., None], 0.0), values_of[number]

    before: Tensor | float = 0.0  # the sum over all earlier keys
    if not causal:
        for number in range(len(keys_of)):
            keys, values = chunk_at(number)
            before = before + keys.mT @ values
    parts = []
    for number, queries in enumerate(torch.split(inputs.query, chunk, -2)):
        rows = of_query(queries)
        mixed = rows @ before if isinstance(before, Tensor) else torch.zeros_like(held[..., :1, :])
        if causal and number < len(keys_of):
            keys, values = chunk_at(number)
            mixed = mixed + (rows @ keys.mT).tril() @ values
            before = before + keys.mT @ values
        parts.append(mixed)
    whole = torch.cat(parts, -2)
    return divided(whole[..., :-1], whole[..., -1:]).to(value.dtype)


def factorised_pattern(
    kernel: Float[Tensor, "batch head query key"], mask: Bool[Tensor, "#batch #head #query key"] | None
) -> Float[Tensor, "batch head query key"]:
    """Return the attention weights from the kernel of all pairs."""
    kernel = kernel if mask is None else kernel.masked_fill(~mask, 0.0)
    return divided(kernel, kernel.sum(-1, keepdim=True))


def divided(weights: Float[Tensor, "*rows column"], total: Float[Tensor, "*rows 1"]) -> Float[Tensor, "*rows column"]:
    """Divide rows by their totals; a row with total 0 is 0."""
    empty = total == 0
    return (weights / total.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def sum_memory(
    query: Queries, key: Keys, value: Float[Tensor, "*batch key out"], visible: Seen = None
) -> Float[Tensor, "*batch query out"]:
    """Return each query's read-out of the sum over the pairs that it sees (over all pairs without a mask)."""
    products = query @ key.mT
    return (products if visible is None else products * visible) @ value


def delta_memory(
    query: Queries, key: Keys, value: Float[Tensor, "*batch key out"], visible: Seen = None
) -> Float[Tensor, "*batch query out"]:
    """Return each query's read-out of a delta-rule memory. Pairs are stored in order of keys; a query sees a prefix of
    them.
    """
    within = (key @ key.mT).tril(-1)  # the solver assumes 1 on the diagonal
    stored = torch.linalg.solve_triangular(within, value, upper=False, unitriangular=True)
    return sum_memory(query, key, stored, visible)


def bounded(key: Keys) -> Keys:
    """Shorten keys to length 1 at most, so that no write of the delta rule makes stored values larger."""
    shortened: Tensor = key / key.norm(dim=-1, keepdim=True).clamp_min(1.0)
    return shortened


def delta_error(width: int, pairs: int) -> float:
    return 2 * max(0.0, 1 - width / pairs)


def sum_error(width: int, pairs: int) -> float:
    whole, rest = divmod(pairs, width)
    return (pairs**2 - whole * width**2 - rest**2) / (pairs * width)


def least_error(width: int, pairs: int) -> float:
    return max(0.0, 1 - width / pairs)
