"""A sigmoid gate on the values before they are mixed, computed from each token's own stream.

A (V * g sigmoid(x W + b)), elementwise or one gate per head (arXiv:2602.01468).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.gate import gate, gated_heads


def start(size: Size, *, how: Literal["elementwise", "headwise"] = "elementwise") -> dict[str, Tensor]:
    gates = size.value_heads * (size.dim if how == "elementwise" else 1)
    return {"gate_weight": torch.zeros(size.width, gates), "gate_bias": torch.zeros(gates)}


@variant(
    kind="output",
    title="Gate on the values",
    summary="A sigmoid gate, read from a token's own stream, on the values that it offers.",
    citation="arXiv:2602.01468",
    formula="A (V * g sigmoid(x W + b));  g = 1 as published, g = 2 to begin from a trained model",
    cost="none",
    parameters={
        "gate_weight": "width x value heads*dim (elementwise) or width x value heads (headwise)",
        "gate_bias": "value heads*dim or value heads",
    },
    settings={
        "how": "one gate for every entry of a head (elementwise) or for the whole head (headwise)",
        "gain": "the largest value of a gate",
    },
    start=start,
    keeps="W = b = 0 with gain 2: every gate is exactly 1",
)
def gated_value(
    value: Float[Tensor, "batch key head dim"],
    stream: Float[Tensor, "batch key width"],
    *,
    gate_weight: Float[Tensor, "width gates"],
    gate_bias: Float[Tensor, " gates"],
    gain: float = 2.0,
) -> Float[Tensor, "batch key head dim"]:
    return gated_heads(value, gate(stream, gate_weight, gate_bias, gain))
