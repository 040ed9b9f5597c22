"""A target pulled back to where the network begins: what every token and channel of the input sends to it.

The frozen network is affine, out = T x + b, so <c, out> = <T^T c, x> + <c, b>. T^T c is one derivative of the network's
own code, taken along its parts; T is never written.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.graded import Graded
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.targets import Functional


def pulled_back(network: Network, target: Functional) -> tuple[Float[Tensor, "batch token width"], float]:
    """T^T c at the stream that enters the first block, and what constants add to the target."""
    with torch.enable_grad():
        leaf = network.streams[0].detach().clone().requires_grad_()
        parts = Sums(torch.stack([leaf, torch.zeros_like(leaf)])[:, None, None])
        stream = Graded.later(network.streams[0], lambda: parts, 1, "none")
        for layer in range(network.layers):
            stream = network.block(layer, stream)
        sent, constants = network.finish(stream).parts.sum((1, 2))
        (adjoint,) = torch.autograd.grad(target(sent), leaf)
    return adjoint, float(target(constants.detach()))
