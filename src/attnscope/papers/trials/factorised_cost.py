"""Attention whose weights factorise: how exact it is, how much it costs, and how sharp it can be.

Fastmax of order p (arXiv:2402.07901) uses f(x) = sum_(l <= p) x^l/l! instead of e^x. Kernels (derived): with
x = cos(q, k), 1 + x is never negative. With x = q . k for normal entries in d dimensions, x is nearly N(0, d), and 1 +
x is negative with probability Phi(-1/sqrt(d)), Phi being the normal distribution function. For order 2, 1 + x + x^2/2 =
((x + 1)^2 + 1)/2 is at least 1/2.

Needle: one key equals the query and n - 1 others are independent of it. If queries and keys are standardised and the
scale is 1/sqrt(d), x is sqrt(d) for the needle and has mean 0 and variance 1 for the others, so the needle's weight is
f(sqrt(d)) / (f(sqrt(d)) + (n - 1) E f), where E f is 3/2 for p = 2 and about sqrt(e) for e^x.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, mix
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


def heads(
    tokens: int, dim: int, seed: int, *, causal: bool = False, dtype: torch.dtype = torch.float64
) -> AttentionInputs:
    """Return random queries, keys and values of one head."""
    rng = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 1, 1, tokens, dim, generator=rng, dtype=dtype)
    return AttentionInputs(query, key, value, causal=causal, scale=dim**-0.5)


def largest_error(kind: str, tokens: int, dim: int, causal: bool, seed: int) -> float:
    """Return the largest difference between the factorised form and pattern times values, in float64."""
    inputs = heads(tokens, dim, seed, causal=causal)
    return float((FUSED[kind](inputs) - mix(PATTERNS[kind](inputs), inputs.value)).abs().max())


def least_kernel(kind: str, tokens: int, dim: int, seed: int, scales: Sequence[float] = (0.2, 1.0, 10.0)) -> float:
    """Return the smallest kernel f(x) inside the factorised form, over all pairs and several scales of the logits.

    A key with equal coordinates is 0 when standardised or centred, so its kernel is f(0) = 1 for every query. The
    kernel of any other key is its weight divided by the weight of this one.
    """
    inputs = heads(tokens, dim, seed)
    inputs.key[..., 0, :] = 0.0
    identity = torch.eye(tokens, dtype=inputs.value.dtype)[None, None]
    weights = [FUSED[kind](replace(inputs, value=identity, scale=scale)) for scale in scales]
    return min(float((rows / rows[..., :1]).min()) for rows in weights)


def negative_share(tokens: int, dim: int, seed: int) -> tuple[float, float]:
    """Return the share of negative weights 1 + x for raw x = q . k, and for the cosine that `fastmax1` uses."""
    inputs = heads(tokens, dim, seed)
    raw = 1 + inputs.query @ inputs.key.mT
    bounded = fastmax1_pattern(inputs)
    return float((raw < 0).double().mean()), float((bounded < 0).double().mean())


def expected_negative_share(dim: int) -> float:
    """Return Phi(-1/sqrt(d)), the expected share of negative weights 1 + q . k for normal entries."""
    return math.erfc(1 / math.sqrt(2 * dim)) / 2


def operations(kind: str, tokens: int, dim: int, causal: bool) -> int:
    """Count the multiplications and additions in matrix products, using meta tensors.

    Softmax is written as two products, which its fused kernel computes piece by piece.
    """
    query, key, value = (torch.empty(1, 1, tokens, dim, device="meta") for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        if kind == "softmax":
            mix((query @ key.mT).softmax(-1), value)
        else:
            FUSED[kind](AttentionInputs(query, key, value, causal=causal, scale=dim**-0.5))
    return int(counter.get_total_flops())


@torch.no_grad()
def seconds(kind: str, tokens: int, dim: int, causal: bool, repeats: int = 3) -> float:
    """Return the time of the fastest of several calls, in float32."""
    inputs = heads(tokens, dim, 0, causal=causal, dtype=torch.float32)
    taken = []
    for _ in range(repeats + 1):  # the first call is a warm-up
        start = time.perf_counter()
        FUSED[kind](inputs)
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def needle_weight(kind: str, tokens: int, dim: int, seed: int) -> float:
    """Return the weight of a key that equals its query among random others, averaged over all keys."""
    inputs = heads(tokens, dim, seed)
    query = standard(inputs.query)
    return float(PATTERNS[kind](replace(inputs, query=query, key=query)).diagonal(dim1=-2, dim2=-1).mean())
