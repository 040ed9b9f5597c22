"""Divide logits by a temperature per head: above 1 attention spreads, below 1 it sharpens.

It works without training; if trained, it adds one number per head. YaRN sets it for stretched contexts
(arXiv:2309.00071).
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights


def start(size: Size) -> dict[str, Tensor]:
    return {"temperature": torch.ones(size.heads)}


def pattern(inputs: AttentionInputs, *, temperature: PerHead) -> Weights:
    return softmax_pattern(_divided(inputs, temperature))


@variant(
    kind="logits",
    title="Temperature of each head",
    summary="Logits are divided by a number per head: above 1 attention spreads, below 1 it sharpens.",
    citation="arXiv:2309.00071",
    formula="softmax(s / T) V",
    cost="n^2",
    trains=False,
    parameters={"temperature": "heads"},
    start=start,
    pattern=pattern,
    keeps="T = 1",
)
def temperature(inputs: AttentionInputs, *, temperature: PerHead) -> Mixed:
    return plain_attention(_divided(inputs, temperature))


def _divided(inputs: AttentionInputs, temperature: PerHead) -> AttentionInputs:
    return replace(inputs, query=inputs.query / temperature.to(inputs.query.dtype)[:, None, None])
