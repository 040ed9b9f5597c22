"""Shaped attention: alpha I + beta A - gamma J, near the identity for small logits.

With alpha = beta = gamma = 1, as in arXiv:2306.17759 and arXiv:2311.01906, a deep stack begins as the identity;
with alpha = gamma = 0 and beta = 1 it is softmax attention, the start for a trained model.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import mean_of_visible, plain_attention, softmax_pattern, uniform_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights


def start(size: Size) -> dict[str, Tensor]:
    return {"alpha": torch.zeros(size.heads), "beta": torch.ones(size.heads), "gamma": torch.zeros(size.heads)}


def pattern(inputs: AttentionInputs, *, alpha: PerHead, beta: PerHead, gamma: PerHead) -> Weights:
    softmax, uniform = softmax_pattern(inputs), uniform_pattern(inputs)
    own = torch.eye(*softmax.shape[-2:], dtype=softmax.dtype, device=softmax.device)
    return _each(alpha, softmax) * own + _each(beta, softmax) * softmax - _each(gamma, softmax) * uniform


@variant(
    kind="pattern",
    title="Shaped: identity, attention, mean",
    summary="The token itself, plus attention, minus the mean of visible values, each with a trained weight per head.",
    citation="arXiv:2306.17759",
    formula="(alpha I + beta A - gamma J) V",
    cost="n^2",
    cross=False,
    rows_sum_to_one=False,
    nonnegative=False,
    parameters={"alpha": "heads", "beta": "heads", "gamma": "heads"},
    start=start,
    pattern=pattern,
    keeps="alpha 0, beta 1, gamma 0: A alone",
)
def shaped(inputs: AttentionInputs, *, alpha: PerHead, beta: PerHead, gamma: PerHead) -> Mixed:
    if inputs.query.shape[-2] != inputs.key.shape[-2]:
        raise RefusalError("Shaped attention adds the token's own value: it needs keys of the same sequence.")
    mixed, mean, own = plain_attention(inputs), mean_of_visible(inputs), inputs.unshared.value
    return _each(alpha, mixed) * own + _each(beta, mixed) * mixed - _each(gamma, mixed) * mean


def _each(weight: PerHead, like: Tensor) -> Float[Tensor, "head 1 1"]:
    return weight.to(like.dtype)[:, None, None]
