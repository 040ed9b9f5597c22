"""Sigmoid attention: every weight independent, rows need not sum to 1.

The bias -ln(keys) makes a row begin with a sum near 1 (arXiv:2409.04431). Here it counts the keys that the query sees,
so that padding and later tokens change nothing.
"""

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.visibility import Key, Mixed, PerHead, Query, Value, Visible, Weights, mix, scores


def start(size: Size) -> dict[str, Tensor]:
    return {"bias": torch.zeros(size.heads)}


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float, bias: PerHead) -> Weights:
    logits = scores(query, key, visible, causal, scale)
    counted = (~logits.isneginf()).sum(-1, keepdim=True).clamp_min(1)
    return (logits + bias.to(logits.dtype)[:, None, None] - counted.to(logits.dtype).log()).sigmoid()


@variant(
    kind="pattern",
    title="Sigmoid attention",
    summary="A sigmoid of every logit instead of a softmax of every row.",
    citation="arXiv:2409.04431",
    formula="A_ij = sigmoid(s_ij + b - ln(number of keys that i sees))",
    cost="n^2",
    memory="n^2",
    rows_sum_to_one=False,
    parameters={"bias": "heads"},
    start=start,
    pattern=pattern,
    changes="a row of sigmoids has another sum than 1 whatever the bias",
)
def sigmoid(
    query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float, bias: PerHead
) -> Mixed:
    return mix(pattern(query, key, visible=visible, causal=causal, scale=scale, bias=bias), value)
