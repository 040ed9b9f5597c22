"""Logits divided by a temperature, one for every head: above 1 attention spreads, below 1 it sharpens.

It works without training; trained, it is one number per head. YaRN sets it for stretched contexts (arXiv:2309.00071).
"""

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import Key, Mixed, PerHead, Query, Value, Visible, Weights


def start(size: Size) -> dict[str, Tensor]:
    return {"temperature": torch.ones(size.heads)}


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float, temperature: PerHead) -> Weights:
    query = query / temperature.to(query.dtype)[:, None, None]
    return softmax_pattern(query, key, visible=visible, causal=causal, scale=scale)


@variant(
    kind="logits",
    title="Temperature of each head",
    summary="Logits divided by a number for each head: above 1 attention spreads, below 1 it sharpens.",
    citation="arXiv:2309.00071",
    formula="softmax(s / T) V",
    cost="n^2",
    trains=False,
    parameters={"temperature": "heads"},
    start=start,
    pattern=pattern,
    keeps="T = 1",
)
def temperature(
    query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float, temperature: PerHead
) -> Mixed:
    query = query / temperature.to(query.dtype)[:, None, None]
    return plain_attention(query, key, value, visible=visible, causal=causal, scale=scale)
