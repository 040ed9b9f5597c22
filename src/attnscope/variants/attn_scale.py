"""AttnScale: amplify differences between tokens, J + (1 + w)(A - J), with a trained w for every head.

J is the low-pass part of a pattern (it keeps only the mean) and A - J its high-pass part: arXiv:2203.05962.
"""

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import mean_of_visible, plain_attention, softmax_pattern, uniform_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights


def start(size: Size) -> dict[str, Tensor]:
    return {"weight": torch.zeros(size.heads)}


def pattern(inputs: AttentionInputs, *, weight: PerHead) -> Weights:
    softmax, uniform = softmax_pattern(inputs), uniform_pattern(inputs)
    return uniform + (1 + weight.to(softmax.dtype)[:, None, None]) * (softmax - uniform)


@variant(
    kind="pattern",
    title="AttnScale: differences amplified",
    summary="The part of attention that tells tokens apart is scaled up by a trained weight per head.",
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
def attn_scale(inputs: AttentionInputs, *, weight: PerHead) -> Mixed:
    mixed, mean = plain_attention(inputs), mean_of_visible(inputs)
    # J + (1 + w)(A - J) = A + w (A - J), which at w = 0 is A to the bit.
    return mixed + weight.to(mixed.dtype)[:, None, None] * (mixed - mean)
