"""Attention whose weights factorise: how exact it is beside its pattern, what it costs, how sharp it can be.

Fastmax (arXiv:2402.07901) puts f(x) = sum_(l <= p) x^l/l! in the place of e^x. Kernels (derived): with x = cos(q, k)
no value of 1 + x is negative; of x = q . k, normal entries in d dimensions, x is nearly N(0, d), and 1 + x is negative
with probability Phi(-1/sqrt(d)). 1 + x + x^2/2 = ((x + 1)^2 + 1)/2 is at least 1/2.

Needle: one key equals the query, n - 1 others are independent of it. Standardised, with scale 1/sqrt(d), the needle's x
is sqrt(d) and that of the others has mean 0 and variance 1, so that the needle's weight is
f(sqrt(d)) / (f(sqrt(d)) + (n - 1) E f), E f = 3/2 for p = 2 and about sqrt(e) for e^x.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnscope.core.experiment import Figure, Point, median
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import mix
from attnscope.papers.trials.curves import curve
from attnscope.papers.trials.trained_alike import accuracy_bars
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
    """Queries, keys and values of one head."""
    rng = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 1, 1, tokens, dim, generator=rng, dtype=dtype)
    return query, key, value


def call_of(dim: int, causal: bool = False) -> dict[str, Any]:
    return {"visible": None, "causal": causal, "scale": dim**-0.5}


def largest_error(kind: str, tokens: int, dim: int, causal: bool, seed: int) -> float:
    """The largest difference of the factorised form from pattern times values, in float64."""
    query, key, value = heads(tokens, dim, seed)
    call = call_of(dim, causal)
    slow = mix(PATTERNS[kind](query, key, **call), value)
    return float((FUSED[kind](query, key, value, **call) - slow).abs().max())


def least_kernel(kind: str, tokens: int, dim: int, seed: int, scales: Sequence[float] = (0.2, 1.0, 10.0)) -> float:
    """The smallest kernel that the factorised form itself works with, over all pairs and some scales of the logits.

    A key of equal coordinates is 0 when it is standardised or centred, so that its kernel is f(0) = 1 for every query:
    the weight of any other key over that of this one is its kernel.
    """
    query, key, _ = heads(tokens, dim, seed)
    key[..., 0, :] = 0.0
    identity = torch.eye(tokens, dtype=query.dtype)[None, None]
    weights = [FUSED[kind](query, key, identity, visible=None, causal=False, scale=scale) for scale in scales]
    return min(float((rows / rows[..., :1]).min()) for rows in weights)


def negative_share(tokens: int, dim: int, seed: int) -> tuple[float, float]:
    """Of the weights 1 + x: with x = q . k as it comes, and with x the cosine that `fastmax1` takes."""
    query, key, _ = heads(tokens, dim, seed)
    raw = 1 + query @ key.mT
    bounded = fastmax1_pattern(query, key, **call_of(dim))
    return float((raw < 0).double().mean()), float((bounded < 0).double().mean())


def expected_negative_share(dim: int) -> float:
    """Phi(-1/sqrt(d))."""
    return math.erfc(1 / math.sqrt(2 * dim)) / 2


def operations(kind: str, tokens: int, dim: int, causal: bool) -> int:
    """Multiplications and additions in matrix products. Counted on tensors without numbers, so the count is exact, and
    softmax is written out as two products, which is what its fused kernel does block by block."""
    query, key, value = (torch.empty(1, 1, tokens, dim, device="meta") for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        if kind == "softmax":
            mix((query @ key.mT).softmax(-1), value)
        else:
            FUSED[kind](query, key, value, **call_of(dim, causal))
    return int(counter.get_total_flops())


@torch.no_grad()
def seconds(kind: str, tokens: int, dim: int, causal: bool, repeats: int = 3) -> float:
    """The shortest of some calls, in float32."""
    query, key, value = heads(tokens, dim, 0, torch.float32)
    taken = []
    for _ in range(repeats + 1):  # the first is not counted
        begun = time.perf_counter()
        FUSED[kind](query, key, value, **call_of(dim, causal))
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])


def needle_weight(kind: str, tokens: int, dim: int, seed: int) -> float:
    """The weight of a key that equals its query, among random others; the mean over all keys taken as the needle."""
    query, _, _ = heads(tokens, dim, seed)
    query = standard(query)
    return float(PATTERNS[kind](query, query, **call_of(dim)).diagonal(dim1=-2, dim2=-1).mean())


# What `fast2024` draws and says: time, operations, accuracy, and the weight of a needle.


def factorised_figures(
    known: Sequence[Mapping[str, Any]], cost: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]
) -> tuple[Figure, ...]:
    def costing(y: str) -> tuple[Point, ...]:
        return tuple(
            point
            for causal, panel in ((False, "all keys"), (True, "causal"))
            for kind in KINDS
            for point in curve(
                [row for row in cost if row["kind"] == kind and row["causal"] == causal], "tokens", y, kind, panel
            )
        )

    needles = [row for one in known for row in one["needle"]]
    axes: dict[str, Any] = {"log": True, "log_x": True}
    return (
        Figure(
            "time",
            "Time of one head",
            "Forward, float32, one core, shortest of three; softmax in its fused kernel. Not the same twice.",
            "tokens",
            "milliseconds",
            costing("milliseconds"),
            **axes,
        ),
        Figure(
            "operations",
            "Operations in matrix products",
            "Counted, not timed; softmax without skipping what a causal mask hides.",
            "tokens",
            "operations",
            costing("operations"),
            **axes,
        ),
        Figure(
            "accuracy",
            "Models that differ in attention alone",
            "Accuracy on sequences not trained on; median over seeds.",
            "task",
            "accuracy",
            accuracy_bars(models, KINDS),
            kind="bars",
        ),
        Figure(
            "needle",
            "Weight of a key that equals its query",
            "Among random keys, standardised; mean over keys, median and range over seeds.",
            "tokens",
            "weight",
            tuple(
                point
                for kind in KINDS
                for point in curve([row for row in needles if row["kind"] == kind], "tokens", "weight", kind)
            ),
            **axes,
        ),
    )


def factorised_remarks(
    cost: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Sequence[float]],
    dim: int,
    lengths: Sequence[int],
    needles: Sequence[int],
) -> tuple[str, ...]:
    def first_win(kind: str) -> str:
        for tokens in lengths:
            here = {row["kind"]: row["milliseconds"] for row in cost if row["tokens"] == tokens and not row["causal"]}
            if here[kind] < here["softmax"]:
                return f"from {tokens} tokens on"
        return f"not up to {lengths[-1]} tokens"

    blunt = median(measured["needle_weight_of_fastmax2_over_softmax"])
    return (
        f"What follows: with heads of {dim} dimensions, fastmax1 was faster than the fused kernel on this "
        f"machine {first_win('fastmax1')}, fastmax2 {first_win('fastmax2')} (all keys). It pays for long sequences and "
        f"narrow heads, in models trained with it: a key that equals its query gets {blunt:.2f} of the weight that "
        f"softmax gives it among {needles[-1]}, so what needs one token out of many should keep some softmax heads.",
    )
