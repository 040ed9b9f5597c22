"""A sigmoid gate that reads the stream, y * gain sigmoid(x W + b), and shares that can begin at 0.

With gain 1 it is the published gate. With gain 2 and W = b = 0 it is exactly 1, with the largest possible gradient; the
output projection behind it absorbs the 2, so both describe the same models. A large bias would bring the gate near 1
too, but then it would not move.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def share_of_each(share: Float[Tensor, " head"], dtype: torch.dtype) -> Float[Tensor, "head 1 1"]:
    """Return one trained share between 0 and 1 for each head, to multiply patterns or outputs with.

    A plain clamp has no gradient outside its bounds: a share at 0 that one noisy step pushes below would stay there.
    Here the value is clamped and the gradient is that of the number itself, so it can come back.
    """
    free = share.to(dtype)[:, None, None]
    return free + (free.clamp(0, 1) - free).detach()


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
    """Apply one gate per head if there are as many gates as heads, else one per coordinate."""
    return heads * gates.to(heads.dtype).reshape(*heads.shape[:-1], -1)
