"""Softpick: a logit at or below 0 gets no weight, and a row may sum to less than 1.

ReLU(e^s - 1) / (sum |e^s - 1| + eps). With m the largest of 0 and the row's logits, e^-m is factored out of numerator
and denominator: ReLU(e^(s-m) - e^-m) / (sum |e^(s-m) - e^-m| + eps e^-m), which cannot overflow (arXiv:2504.20966).
"""

import torch

from attnscope.core.variant import variant
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights, mix, scores

EPSILON = 1e-8


def pattern(inputs: AttentionInputs) -> Weights:
    """Compute the pattern as published, without the shift; tests compare the shifted form with it."""
    logits = scores(inputs)
    risen = torch.where(logits.isneginf(), 0.0, logits.exp() - 1)
    return risen.relu() / (risen.abs().sum(-1, keepdim=True) + EPSILON)


@variant(
    kind="pattern",
    title="Softpick, a rectified softmax",
    summary="Rectified softmax: logits at or below 0 get no weight, and rows need not sum to 1.",
    citation="arXiv:2504.20966",
    formula="A_ij = ReLU(e^s_ij - 1) / (sum_j |e^s_ij - 1| + 1e-8)",
    cost="n^2",
    memory="n^2",
    rows_sum_to_one=False,
    pattern=pattern,
    changes="keys whose logit is at or below 0 lose all their weight at once",
)
def softpick(inputs: AttentionInputs) -> Mixed:
    logits = scores(inputs)
    top = logits.detach().amax(-1, keepdim=True).clamp_min(0)
    risen = ((logits - top).exp() - (-top).exp()).masked_fill(logits.isneginf(), 0.0)
    return mix(risen.relu() / (risen.abs().sum(-1, keepdim=True) + EPSILON * (-top).exp()), inputs.value)
