"""A target pulled back to where the network begins: what every token and channel of the input sends to it.

The frozen network is affine, out = T x + b, so <c, out> = <T^T c, x> + <c, b>. T^T c is one derivative of the network's
own code, taken along its parts; T is never written. With t marking an attention edge, T(t) = sum over k of t^k T_k, and
T_k^T c is what paths of length k send: the adjoints of all lengths are carried back side by side (`tape`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.graded import Graded
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_through
from attnscope.pathways.targets import Functional, pulled_back_through_tail, seen_by


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


def pulled_back_by_length(
    network: Network, target: Functional
) -> tuple[Float[Tensor, "length batch token width"], Float[Tensor, " length"]]:
    """T_k^T c for every length k, and what paths of each length that begin at constants add to the target."""
    network = seen_by(target, network)
    last, constant = pulled_back_through_tail(network, target)
    adjoint = Sums(last[None, None, None])
    constants = last.new_zeros(network.layers + 1)
    constants[0] += constant
    for layer in reversed(range(network.layers)):
        pulled = pulled_through(network, layer, adjoint, "attention")
        if pulled.constants is not None:
            constants[: pulled.constants.ends[0]] += pulled.constants.dense[0, :, 0]
        if pulled.before is None:  # nothing that enters this block leaves it
            return last.new_zeros(network.layers + 1, *network.streams[0].shape), constants
        adjoint = pulled.before
    return adjoint.within((0, 0), (network.layers + 1, 1))[0, :, 0], constants
