"""Softpick: a logit at or below 0 gets no weight, and a row may sum to less than 1.

ReLU(e^s - 1) / (sum |e^s - 1| + eps). With m the largest of 0 and the row's logits, e^-m is taken out of both:
ReLU(e^(s-m) - e^-m) / (sum |e^(s-m) - e^-m| + eps e^-m), which cannot overflow (arXiv:2504.20966).
"""

import torch

from attnscope.core.variant import variant
from attnscope.matrix.visibility import Key, Mixed, Query, Value, Visible, Weights, mix, scores

EPSILON = 1e-8


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float) -> Weights:
    """As published, without the shift; the shifted form is tested against it."""
    logits = scores(query, key, visible, causal, scale)
    risen = torch.where(logits.isneginf(), 0.0, logits.exp() - 1)
    return risen.relu() / (risen.abs().sum(-1, keepdim=True) + EPSILON)


@variant(
    kind="pattern",
    title="Softpick, a rectified softmax",
    summary="Rectified softmax: logits at or below 0 get no weight, and no row must sum to 1.",
    citation="arXiv:2504.20966",
    formula="A_ij = ReLU(e^s_ij - 1) / (sum_j |e^s_ij - 1| + 1e-8)",
    cost="n^2",
    memory="n^2",
    rows_sum_to_one=False,
    pattern=pattern,
    changes="keys whose logit is at or below 0 lose all their weight at once",
)
def softpick(query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float) -> Mixed:
    logits = scores(query, key, visible, causal, scale)
    top = logits.detach().amax(-1, keepdim=True).clamp_min(0)
    risen = ((logits - top).exp() - (-top).exp()).masked_fill(logits.isneginf(), 0.0)
    return mix(risen.relu() / (risen.abs().sum(-1, keepdim=True) + EPSILON * (-top).exp()), value)
