"""Sigmoid attention: every weight is independent of the others, and rows need not sum to 1.

The bias -ln(keys) makes a row begin with a sum near 1 (arXiv:2409.04431). Here it counts only the keys that the query
sees, so that padding and later tokens have no effect.
"""

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights, mix, scores


def start(size: Size) -> dict[str, Tensor]:
    return {"bias": torch.zeros(size.heads)}


def pattern(inputs: AttentionInputs, *, bias: PerHead) -> Weights:
    logits = scores(inputs)
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
    changes="a row of sigmoids does not sum to 1, whatever the bias",
)
def sigmoid(inputs: AttentionInputs, *, bias: PerHead) -> Mixed:
    return mix(pattern(inputs, bias=bias), inputs.value)
