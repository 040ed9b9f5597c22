"""AttnScale: differences between tokens amplified, J + (1 + w)(A - J), with a trained w for every head.

J is the low-pass part of a pattern (it keeps only the mean) and A - J its high-pass part: arXiv:2203.05962.
"""

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import mean_of_visible, plain_attention, softmax_pattern, uniform_pattern
from attnscope.matrix.visibility import Key, Mixed, PerHead, Query, Value, Visible, Weights


def start(size: Size) -> dict[str, Tensor]:
    return {"weight": torch.zeros(size.heads)}


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float, weight: PerHead) -> Weights:
    softmax = softmax_pattern(query, key, visible=visible, causal=causal, scale=scale)
    uniform = uniform_pattern(query, key, visible=visible, causal=causal)
    return uniform + (1 + weight.to(softmax.dtype)[:, None, None]) * (softmax - uniform)


@variant(
    kind="pattern",
    title="AttnScale: differences made louder",
    summary="The part of attention that tells tokens apart, scaled up by a trained weight a head.",
    citation="arXiv:2203.05962",
    formula="(J + (1 + w)(A - J)) V",
    cost="n^2",
    rows_sum_to_one=True,
    nonnegative=False,
    parameters={"weight": "heads"},
    start=start,
    pattern=pattern,
    keeps="w = 0: A alone",
)
def attn_scale(
    query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float, weight: PerHead
) -> Mixed:
    mixed = plain_attention(query, key, value, visible=visible, causal=causal, scale=scale)
    mean = mean_of_visible(query, value, visible=visible, causal=causal)
    # J + (1 + w)(A - J) = A + w (A - J), which at w = 0 is A to the bit.
    return mixed + weight.to(mixed.dtype)[:, None, None] * (mixed - mean)
