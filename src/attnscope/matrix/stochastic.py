"""What a pattern whose rows sum to one does to differences between tokens: how much of them it leaves.

The patterns are known by their products x -> A x and y -> A^T y only (`Product`), on tensors [batch head
row column].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.spectrum import Product, incoherent_columns, leading_singular_values

# Exact up to 56 keys, and to rounding where singular values are apart. On random softmax patterns, which
# have no gap below the first value, the second came out short by at most 3e-8 at 256 tokens, 0.02% at 1024 (6 draws
# each) and 0.2% at 2048 (2 draws); 8 steps left 0.2%, 1.2% and 1.1%. Values are never too large, so a contraction may
# be understated by that much.
BLOCK_COLUMNS = 4
STEPS = 14
_DOBRUSHIN_ROWS = 64


def dobrushin(pattern: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch"]:
    """tau(P), half the largest l1 distance of two rows: 0 if all rows are equal, 1 if two are disjoint.

    diam(P X) <= tau(P) diam(X) in every norm: two rows p, q share the mass min(p, q), and what they do not
    share, of size tau each, averages tokens that are at most diam(X) apart.
    """
    rows = pattern.shape[-2]
    blocks = [
        torch.cdist(pattern[..., i : i + _DOBRUSHIN_ROWS, :], pattern, p=1.0).amax(dim=(-2, -1))
        for i in range(0, rows, _DOBRUSHIN_ROWS)
    ]
    return torch.stack(blocks).amax(dim=0) / 2.0


def pattern_singular_values(
    apply: Product,
    apply_transposed: Product,
    *,
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    heads: int,
    dtype: torch.dtype = torch.float32,
    count: int = 2,
) -> Float[Tensor, "batch head count"]:
    """The largest singular values of every head's pattern among real queries and keys (arXiv:2410.07799)."""
    keep_query, keep_key = _keep(query_mask), _keep(key_mask)
    return leading_singular_values(
        lambda x: keep_query(apply(keep_key(x))),
        lambda y: keep_key(apply_transposed(y)),
        _start(key_mask, heads, dtype),
        count=count,
        steps=STEPS,
    )


def centred_contraction(
    apply: Product,
    apply_transposed: Product,
    *,
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    heads: int,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch head"]:
    """The factor sqrt(lambda) in d_M(A X) <= sqrt(lambda) d_M(X) (arXiv:2202.08625).

    With C = I - ee^T, e = 1/sqrt(n), the distance to the one-token subspace is d_M(X) = ||C X||_F. Rows of
    A sum to one, so A e = e and C A = C A C: hence C A X = (C A)(C X) and d_M(A X) <= ||C A||_2 d_M(X),
    where ||C A||_2^2 is the largest eigenvalue lambda of A^T C A. Taken as ||C A C||_2, which is the same
    number, and remains the contraction of centred tokens where a learned sink makes rows sum to less than
    one. Causal patterns may have a factor above 1.
    """
    centre_query, centre_key = _centre(query_mask), _centre(key_mask)
    values = leading_singular_values(
        lambda x: centre_query(apply(centre_key(x))),
        lambda y: centre_key(apply_transposed(y)),
        centre_key(_start(key_mask, heads, dtype)),
        count=1,
        steps=STEPS,
    )
    return values[..., 0]


def _start(
    key_mask: Bool[Tensor, "batch key"], heads: int, dtype: torch.dtype
) -> Float[Tensor, "batch head key block"]:
    """The same start wherever padding stands: rows are numbered from the first real key."""
    columns = incoherent_columns(key_mask.shape[-1], BLOCK_COLUMNS).to(key_mask.device, dtype)
    columns[:, 0] = 1.0  # A 1 = 1: the constant vector is nearly the first singular vector
    number = (key_mask.cumsum(dim=-1) - 1).clamp_min(0)
    rows = columns[number] * key_mask[..., None]
    return rows[:, None].expand(-1, heads, -1, -1)


def _keep(mask: Bool[Tensor, "batch row"]) -> Callable[[Tensor], Tensor]:
    if bool(mask.all()):
        return lambda rows: rows
    return lambda rows: rows.masked_fill(~mask[:, None, :, None], 0.0)


def _centre(mask: Bool[Tensor, "batch row"]) -> Callable[[Tensor], Tensor]:
    keep, count = _keep(mask), mask.sum(dim=-1).clamp_min(1)[:, None, None, None]

    def centre(rows: Tensor) -> Tensor:
        kept = keep(rows)
        return keep(kept - kept.sum(dim=-2, keepdim=True) / count)

    return centre
