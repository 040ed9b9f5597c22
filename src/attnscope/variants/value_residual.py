"""Add a share of the first block's values to the values of every block.

The values of block l become own * V_l + first * V_0, with two trained numbers `own` and `first` per head
(arXiv:2410.17897).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant


def start(size: Size) -> dict[str, Tensor]:
    return {"own": torch.ones(size.value_heads), "first": torch.zeros(size.value_heads)}


@variant(
    kind="output",
    title="Values with a share of the first",
    summary="Every block's values get a trained share of the first block's values.",
    citation="arXiv:2410.17897",
    formula="A (a V_l + b V_1)",
    cost="none",
    parameters={"own": "value heads", "first": "value heads"},
    start=start,
    keeps="a = 1, b = 0: the block's own values",
)
def value_residual(
    value: Float[Tensor, "batch key head dim"],
    first_value: Float[Tensor, "batch key head dim"],
    *,
    own: Float[Tensor, " head"],
    first: Float[Tensor, " head"],
) -> Float[Tensor, "batch key head dim"]:
    return own.to(value.dtype)[:, None] * value + first.to(value.dtype)[:, None] * first_value.to(value.dtype)
