"""A trained mix of softmax and doubly normalised attention, one share for every head (arXiv:2009.14308)."""

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.gate import doubly_normalised_pattern, share_of_each
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights, mix


def start(size: Size) -> dict[str, Tensor]:
    return {"share": torch.zeros(size.heads)}


def pattern(inputs: AttentionInputs, *, share: PerHead) -> Weights:
    doubly, softmax = doubly_normalised_pattern(inputs), softmax_pattern(inputs)
    part = share_of_each(share, softmax.dtype)
    return (1 - part) * softmax + part * doubly


@variant(
    kind="pattern",
    title="Hybrid normalised attention",
    summary="Softmax and doubly normalised attention, mixed by a trained share per head.",
    citation="arXiv:2009.14308",
    formula="(1 - u) softmax(s) + u A,  A doubly normalised, u in [0, 1]",
    cost="n^2",
    memory="n^2",
    causal=False,
    cross=False,
    parameters={"share": "heads"},
    start=start,
    pattern=pattern,
    keeps="share u = 0: softmax alone",
)
def hybrid_normalised(inputs: AttentionInputs, *, share: PerHead) -> Mixed:
    doubly, plain = mix(doubly_normalised_pattern(inputs), inputs.value), plain_attention(inputs)
    return plain + share_of_each(share, plain.dtype) * (doubly - plain)
