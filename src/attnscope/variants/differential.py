"""Differential attention: subtract a second pattern, so that attention common to both by chance cancels.

Published with two halves of projections, W_Q1 and W_Q2 (arXiv:2410.05258). Here a trained matrix per head makes the
second query and key from the first, q2 = q M_q, so that a head of a trained model need not be cut in two; the weight
lambda is trained directly. The paper's norm after each head is not included.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights

OfHeads = Float[Tensor, "head dim dim"]


def start(size: Size) -> dict[str, Tensor]:
    same = torch.eye(size.dim).repeat(size.heads, 1, 1)
    return {"second_query": same, "second_key": same.clone(), "lambda_": torch.zeros(size.heads)}


def pattern(inputs: AttentionInputs, *, second_query: OfHeads, second_key: OfHeads, lambda_: PerHead) -> Weights:
    first, second = softmax_pattern(inputs), softmax_pattern(_second(inputs, second_query, second_key))
    return first - lambda_.to(first.dtype)[:, None, None] * second


@variant(
    kind="pattern",
    title="Differential attention",
    summary="One softmax pattern minus a trained share of another one.",
    citation="arXiv:2410.05258",
    formula="(softmax(q k) - lambda softmax(q M_q . k M_k)) V",
    cost="n^2",
    rows_sum_to_one=False,
    nonnegative=False,
    parameters={"second_query": "heads x dim x dim", "second_key": "heads x dim x dim", "lambda_": "heads"},
    start=start,
    pattern=pattern,
    keeps="lambda = 0: nothing is subtracted",
)
def differential(inputs: AttentionInputs, *, second_query: OfHeads, second_key: OfHeads, lambda_: PerHead) -> Mixed:
    first, second = plain_attention(inputs), plain_attention(_second(inputs, second_query, second_key))
    return first - lambda_.to(first.dtype)[:, None, None] * second


def _second(inputs: AttentionInputs, query: OfHeads, key: OfHeads) -> AttentionInputs:
    whole = inputs.unshared
    return replace(whole, query=whole.query @ query.to(whole.query.dtype), key=whole.key @ key.to(whole.key.dtype))
