"""Differential attention: a second pattern is subtracted, so that what both attend to by chance cancels.

Published with two halves of projections, W_Q1 and W_Q2 (arXiv:2410.05258). Here a trained matrix per head makes the
second query and key from the first, q2 = q M_q, so that a head of a trained model need not be cut in two; the weight
lambda is trained directly. The paper's norm behind each head is not included.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import Key, Mixed, PerHead, Query, Value, Visible, Weights, for_every_head


def start(size: Size) -> dict[str, Tensor]:
    same = torch.eye(size.dim).repeat(size.heads, 1, 1)
    return {"second_query": same, "second_key": same.clone(), "lambda_": torch.zeros(size.heads)}


def pattern(
    query: Query,
    key: Key,
    *,
    visible: Visible,
    causal: bool,
    scale: float,
    second_query: Float[Tensor, "head dim dim"],
    second_key: Float[Tensor, "head dim dim"],
    lambda_: PerHead,
) -> Weights:
    first = softmax_pattern(query, key, visible=visible, causal=causal, scale=scale)
    query, key = _second(query, second_query), _second(for_every_head(key, query.shape[1]), second_key)
    second = softmax_pattern(query, key, visible=visible, causal=causal, scale=scale)
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
def differential(
    query: Query,
    key: Key,
    value: Value,
    *,
    visible: Visible,
    causal: bool,
    scale: float,
    second_query: Float[Tensor, "head dim dim"],
    second_key: Float[Tensor, "head dim dim"],
    lambda_: PerHead,
) -> Mixed:
    first = plain_attention(query, key, value, visible=visible, causal=causal, scale=scale)
    key, value = for_every_head(key, query.shape[1]), for_every_head(value, query.shape[1])
    query, key = _second(query, second_query), _second(key, second_key)
    second = plain_attention(query, key, value, visible=visible, causal=causal, scale=scale)
    return first - lambda_.to(first.dtype)[:, None, None] * second


def _second(
    first: Float[Tensor, "batch head token dim"], matrix: Float[Tensor, "head dim dim"]
) -> Float[Tensor, "batch head token dim"]:
    return first @ matrix.to(first.dtype)
