"""A sigmoid gate that reads the stream: y * gain sigmoid(x W + b).

With gain 1 it is the published gate. With gain 2 and W = b = 0 it is exactly 1, with a gradient that is as large as it
can be; the output projection behind it takes up the 2, so both describe the same models. A gate brought near 1 by a
large bias would not move.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# A trained share between 0 and 1 that can begin at 0.
#
# A clamp has no gradient outside its bounds: a share at 0 that one noisy step pushes below would stay there for good.
# Here the value is clamped and the gradient is that of the number itself, so that it can come back.


def share_of_each(share: Float[Tensor, " head"], dtype: torch.dtype) -> Float[Tensor, "head 1 1"]:
    """One share for each head, to be multiplied with patterns or with what heads give."""
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
    """As many gates as heads: one for each; else one for every coordinate of every head."""
    return heads * gates.to(heads.dtype).reshape(*heads.shape[:-1], -1)
