"""A gate on every channel of the attention write, conditional on the token.

A head with nothing to add puts its weight on a sink. A gate computed from the stream can close the write instead (the
conditional channel gate of arXiv:2603.05498).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.gate import gate


def start(size: Size) -> dict[str, Tensor]:
    return {"gate_weight": torch.zeros(size.width, size.width), "gate_bias": torch.zeros(size.width)}


@variant(
    kind="block",
    title="Conditional channel gate",
    summary="A sigmoid gate, read from the token's stream, on every channel of what attention writes.",
    citation="arXiv:2603.05498",
    formula="x <- x + f * g sigmoid(x W + b);  g = 2 to begin from a trained model",
    cost="none",
    parameters={"gate_weight": "width x width", "gate_bias": "width"},
    settings={"gain": "the largest value of a gate"},
    start=start,
    keeps="W = b = 0 with gain 2: every gate is exactly 1",
)
def conditional_gate(
    write: Float[Tensor, "batch token width"],
    stream: Float[Tensor, "batch token width"],
    *,
    gate_weight: Float[Tensor, "width width"],
    gate_bias: Float[Tensor, " width"],
    gain: float = 2.0,
) -> Float[Tensor, "batch token width"]:
    return write * gate(stream, gate_weight, gate_bias, gain).to(write.dtype)
