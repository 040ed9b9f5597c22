"""A sigmoid gate that reads the stream: y * gain sigmoid(x W + b).

With gain 1 it is the published gate. With gain 2 and W = b = 0 it is exactly 1, with a gradient that is as large as it
can be; the output projection behind it takes up the 2, so both describe the same models. A gate brought near 1 by a
large bias would not move.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def gate(
    stream: Float[Tensor, "batch token width"],
    weight: Float[Tensor, "width out"],
    bias: Float[Tensor, " out"],
    gain: float,
) -> Float[Tensor, "batch token out"]:
    return gain * (stream @ weight.to(stream.dtype) + bias.to(stream.dtype)).sigmoid()


def gated_heads(
    heads: Float[Tensor, "batch token head dim"], gates: Float[Tensor, "batch token out"]
) -> Float[Tensor, "batch token head dim"]:
    """As many gates as heads: one for each; else one for every coordinate of every head."""
    return heads * gates.to(heads.dtype).reshape(*heads.shape[:-1], -1)
