"""A tanh instead of a norm: bounded and elementwise, independent of the rest of the token (arXiv:2503.10622)."""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant


def start(size: Size) -> dict[str, Tensor]:
    return {"alpha": torch.full((1,), 0.5), "gain": torch.ones(size.width), "shift": torch.zeros(size.width)}


@variant(
    kind="block",
    title="Dynamic tanh instead of a norm",
    summary="A bounded function of every coordinate replaces a norm.",
    citation="arXiv:2503.10622",
    formula="g tanh(alpha x) + b",
    cost="none",
    parameters={"alpha": "one number", "gain": "width", "shift": "width"},
    start=start,
    changes="a norm divides each token by its own size, and a fixed function does not",
)
def dynamic_tanh(
    stream: Float[Tensor, "batch token width"],
    *,
    alpha: Float[Tensor, " 1"],
    gain: Float[Tensor, " width"],
    shift: Float[Tensor, " width"],
) -> Float[Tensor, "batch token width"]:
    alpha, gain, shift = (parameter.to(stream.dtype) for parameter in (alpha, gain, shift))
    return gain * (alpha * stream).tanh() + shift
