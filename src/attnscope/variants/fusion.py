"""Fusion of block outputs: the output is also computed from the streams after earlier blocks.

concat: one linear map of all streams side by side; max: the largest value of every coordinate; gate: each token weighs
the streams by a softmax over blocks of h_l . w_l + b_l. It helps if tokens have become alike in the last block
(arXiv:2202.08625).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.variant import Size, variant

How = Literal["concat", "max", "gate"]
KINDS = ("concat", "max", "gate")


def start(size: Size, *, how: How = "concat") -> dict[str, Tensor]:
    """Start concat with the identity for the last stream and 0 for the others, and gate with equal weights."""
    if how == "concat":
        mixing = torch.zeros(size.layers, size.width, size.width)
        mixing[-1] = torch.eye(size.width)
        return {"mixing": mixing}
    if how == "gate":
        return {"gate_weight": torch.zeros(size.layers, size.width), "gate_bias": torch.zeros(size.layers)}
    return {}


@variant(
    kind="block",
    title="Fusion of block outputs",
    summary="The output reads the streams behind all blocks (side by side, their largest, or weighed by each token).",
    citation="arXiv:2202.08625",
    formula="concat: sum_l h_l W_l;  max: max_l h_l;  gate: sum_l softmax_l(h_l . w_l + b_l) h_l",
    cost="none",
    parameters={
        "mixing": "blocks x width x width (concat)",
        "gate_weight": "blocks x width (gate)",
        "gate_bias": "blocks (gate)",
    },
    settings={"how": "concat, max or gate"},
    start=start,
    keeps="concat: W of the last stream is the identity and all others are 0; max and gate have no such start",
)
def fusion(
    streams: Float[Tensor, "layer batch token width"],
    *,
    mixing: Float[Tensor, "layer width width"] | None = None,
    gate_weight: Float[Tensor, "layer width"] | None = None,
    gate_bias: Float[Tensor, " layer"] | None = None,
    how: str = "concat",
) -> Float[Tensor, "batch token width"]:
    if how not in KINDS:
        raise RefusalError(f"There is no fusion called '{how}'.{nearest(how, KINDS)}")
    if how == "max":
        return streams.amax(0)
    if how == "concat":
        if mixing is None:
            raise RefusalError("Fusion by concat needs mixing, a matrix for each block.")
        return torch.einsum("lbtw,lwv->btv", streams, mixing.to(streams.dtype))
    if gate_weight is None or gate_bias is None:
        raise RefusalError("Fusion by gate needs gate_weight and gate_bias, one row and one number for each block.")
    exact = streams.to(torch.promote_types(streams.dtype, torch.float32))
    logits = torch.einsum("lbtw,lw->lbt", exact, gate_weight.to(exact.dtype))
    weight = (logits + gate_bias.to(exact.dtype)[:, None, None]).softmax(0)
    return (weight[..., None] * exact).sum(0).to(streams.dtype)
