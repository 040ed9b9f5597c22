"""A sigmoid gate after each head, computed from the token's own stream.

(A V) * g sigmoid(x W + b) before the output projection, elementwise or one gate per head (arXiv:2505.06708; why fewer
samples suffice: arXiv:2602.01468).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.gate import gate, gated_heads


def start(size: Size, *, how: Literal["elementwise", "headwise"] = "elementwise") -> dict[str, Tensor]:
    gates = size.heads * (size.dim if how == "elementwise" else 1)
    return {"gate_weight": torch.zeros(size.width, gates), "gate_bias": torch.zeros(gates)}


@variant(
    kind="output",
    title="Gate behind each head",
    summary="A sigmoid gate, read from the token's own stream, on what each head gives.",
    citation="arXiv:2505.06708",
    formula="(A V) * g sigmoid(x W + b);  g = 1 as published, g = 2 to begin from a trained model",
    cost="none",
    parameters={
        "gate_weight": "width x heads*dim (elementwise) or width x heads (headwise)",
        "gate_bias": "heads*dim or heads",
    },
    settings={
        "how": "one gate for every entry of a head (elementwise) or for the whole head (headwise)",
        "gain": "the largest value of a gate",
    },
    start=start,
    keeps="W = b = 0 with gain 2: every gate is exactly 1",
)
def gated_output(
    mixed: Float[Tensor, "batch query head dim"],
    stream: Float[Tensor, "batch query width"],
    *,
    gate_weight: Float[Tensor, "width gates"],
    gate_bias: Float[Tensor, " gates"],
    gain: float = 2.0,
) -> Float[Tensor, "batch query head dim"]:
    return gated_heads(mixed, gate(stream, gate_weight, gate_bias, gain))
