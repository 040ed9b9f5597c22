"""Attention whose weights factorise: how exact it is, what it costs, how sharp it can be.

Fastmax (arXiv:2402.07901) uses f(x) = sum_(l <= p) x^l/l! instead of e^x. Kernels (derived): with x = cos(q, k)
no value of 1 + x is negative; of x = q . k, normal entries in d dimensions, x is nearly N(0, d), and 1 + x is negative
with probability Phi(-1/sqrt(d)). 1 + x + x^2/2 = ((x + 1)^2 + 1)/2 is at least 1/2.

Needle: one key equals the query, n - 1 others are independent of it. Standardised, with scale 1/sqrt(d), the needle's x
is sqrt(d) and that of the others has mean 0 and variance 1, so that the needle's weight is
f(sqrt(d)) / (f(sqrt(d)) + (n - 1) E f), E f = 3/2 for p = 2 and about sqrt(e) for e^x.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import mix
from attnscope.variants.fastmax1 import fastmax1
from attnscope.variants.fastmax1 import pattern as fastmax1_pattern
from attnscope.variants.fastmax2 import fastmax2, standard
from attnscope.variants.fastmax2 import pattern as fastmax2_pattern

Heads = Float[Tensor, "batch head token dim"]
KINDS = ("softmax", "fastmax1", "fastmax2")
FUSED: dict[str, Callable[..., Any]] = {"softmax": plain_attention, "fastmax1": fastmax1, "fastmax2": fastmax2}
PATTERNS: dict[str, Callable[..., Any]] = {
    "softmax": softmax_pattern,
    "fastmax1": fastmax1_pattern,
    "fastmax2": fastmax2_pattern,
}


def heads(tokens: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Heads, Heads, Heads]:
    """Return queries, keys and values of one head."""
    rng = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 1, 1, tokens, dim, generator=rng, dtype=dtype)
    return query, key, value


def call_of(dim: int, causal: bool = False) -> dict[str, Any]:
    return {"visible": None, "causal": causal, "scale": dim**-0.5}


def largest_error(kind: str, tokens: int, dim: int, causal: bool, seed: int) -> float:
    """Return the largest difference of the factorised form from pattern times values, in float64."""
    query, key, value = heads(tokens, dim, seed)
    call = call_of(dim, causal)
    slow = mix(PATTERNS[kind](query, key, **call), value)
    return float((FUSED[kind](query, key, value, **call) - slow).abs().max())


def least_kernel(kind: str, tokens: int, dim: int, seed: int, scales: Sequence[float] = (0.2, 1.0, 10.0)) -> float:
    """Return the smallest kernel inside the factorised form, over all pairs and some scales of the logits.

    A key of equal coordinates is 0 when standardised or centred, so its kernel is f(0) = 1 for every query: the weight
    of another key over the weight of this one is its kernel.
    """
    query, key, _ = heads(tokens, dim, seed)
    key[..., 0, :] = 0.0
    identity = torch.eye(tokens, dtype=query.dtype)[None, None]
    weights = [FUSED[kind](query, key, identity, visible=None, causal=False, scale=scale) for scale in scales]
    return min(float((rows / rows[..., :1]).min()) for rows in weights)


def negative_share(tokens: int, dim: int, seed: int) -> tuple[float, float]:
    """Return the share of negative weights 1 + x for raw x = q . k, and for the cosine that `fastmax1` uses."""
    query, key, _ = heads(tokens, dim, seed)
    raw = 1 + query @ key.mT
    bounded = fastmax1_pattern(query, key, **call_of(dim))
    return float((raw < 0).double().mean()), float((bounded < 0).double().mean())


def expected_negative_share(dim: int) -> float:
    """Phi(-1/sqrt(d))."""
    return math.erfc(1 / math.sqrt(2 * dim)) / 2


def operations(kind: str, tokens: int, dim: int, causal: bool) -> int:
    """Count multiplications and additions in matrix products, on meta tensors.

    Softmax is written out as two products, which is what its fused kernel does block by block.
    """
    query, key, value = (torch.empty(1, 1, tokens, dim, device="meta") for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        if kind == "softmax":
            mix((query @ key.mT).softmax(-1), value)
        else:
            FUSED[kind](query, key, value, **call_of(dim, causal))
    return int(counter.get_total_flops())


@torch.no_grad()
def seconds(kind: str, tokens: int, dim: int, causal: bool, repeats: int = 3) -> float:
    """Return the shortest of some calls, in float32."""
    query, key, value = heads(tokens, dim, 0, torch.float32)
    taken = []
    for _ in range(repeats + 1):  # the first is warm-up
        start = time.perf_counter()
        FUSED[kind](query, key, value, **call_of(dim, causal))
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def needle_weight(kind: str, tokens: int, dim: int, seed: int) -> float:
    """Return the weight of a key that equals its query, among random others; mean over all keys as the needle."""
    query, _, _ = heads(tokens, dim, seed)
    query = standard(query)
    return float(PATTERNS[kind](query, query, **call_of(dim)).diagonal(dim1=-2, dim2=-1).mean())
