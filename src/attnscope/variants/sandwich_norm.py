"""Norms after attention and MLP as well as before them, so that every write to the stream has the same length.

x <- x + norm(f(norm(x))) prevents spikes in the stream (sandwich norm, arXiv:2105.13290; its effect on spikes:
arXiv:2603.05498).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant


def start(size: Size) -> dict[str, Tensor]:
    return {"gain": torch.ones(size.width)}


@variant(
    kind="block",
    title="Sandwich norm: also after a branch",
    summary="What attention or the MLP is about to add to the stream is normed first.",
    citation="arXiv:2105.13290",
    formula="x <- x + g f / rms(f),  f = what the branch gives",
    cost="none",
    parameters={"gain": "width"},
    start=start,
    changes="each token's write had its own length, which one gain for all tokens cannot restore",
)
def sandwich_norm(
    write: Float[Tensor, "batch token width"], *, gain: Float[Tensor, " width"]
) -> Float[Tensor, "batch token width"]:
    return F.rms_norm(write, write.shape[-1:], gain.to(write.dtype), 1e-6)
