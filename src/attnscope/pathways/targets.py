"""Targets of a decomposition: one number that depends linearly on the output, with a name a person can read.

    logit(42)                      the last token's logit of vocabulary entry 42
    logit_difference(42, 7)        the logit of entry 42 minus the logit of entry 7
    class_logit(3)                 the logit of a class, if the model returns one row per sequence
    stream_norm(network)           the last stream, projected onto itself: adds up to its Frobenius norm
    residual_norm(network)         the part of it in which tokens differ: adds up to ||X - 1 mean^T||_F

Targets are summed over the sequences of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import Graded
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_through

Functional = Callable[[Tensor], Tensor]
"""A linear functional of the model's output; a `Target` is one with a name."""


@dataclass(frozen=True, eq=False)
class Target:
    """The sum of weight * output[position, entry] over `entries`; with a `direction`, its inner product with the
    stream.
    """

    name: str
    entries: tuple[tuple[int, float], ...] = ()
    position: int | None = -1  # None if the output has no axis of tokens
    direction: Float[Tensor, "batch token width"] | None = None

    def __call__(self, output: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
        if self.direction is not None:
            return (output * self.direction).sum()
        row = output if self.position is None else _row(output, self.position)
        for entry, _ in self.entries:
            if not 0 <= entry < row.shape[-1]:
                raise RefusalError(
                    f"The output has entries 0 to {row.shape[-1] - 1}, and the target asks for {entry}: choose another."
                )
        return torch.stack([weight * row[..., entry].sum() for entry, weight in self.entries]).sum()

    def read_from(self, network: Network) -> Network:
        """Return the network that ends at the tensor from which this target is computed."""
        return network if self.direction is None else network.without_tail


def _row(output: Tensor, position: int) -> Tensor:
    if output.ndim < 3:
        raise RefusalError("The output has no axis of tokens: ask for class_logit instead of a token's logit.")
    if not -output.shape[-2] <= position < output.shape[-2]:
        raise RefusalError(f"The text has {output.shape[-2]} tokens, and position {position} is not among them.")
    return output[..., position, :]


def logit(token: int, position: int = -1, word: str | None = None) -> Target:
    return Target(f"logit of {_quoted(token, word)} at {_place(position)}", ((token, 1.0),), position)


def logit_difference(
    token: int, other: int, position: int = -1, words: tuple[str | None, str | None] = (None, None)
) -> Target:
    name = f"logit of {_quoted(token, words[0])} minus {_quoted(other, words[1])} at {_place(position)}"
    return Target(name, ((token, 1.0), (other, -1.0)), position)


def class_logit(label: int, word: str | None = None) -> Target:
    return Target(f"logit of class {_quoted(label, word)}", ((label, 1.0),), None)


def stream_norm(network: Network) -> Target:
    stream = network.streams[-1]
    return Target("norm of the last stream", direction=stream / stream.norm())


def residual_norm(network: Network) -> Target:
    stream = network.streams[-1]
    residual = stream - stream.mean(-2, keepdim=True)
    size = residual.norm()
    if not size > 0:
        raise RefusalError("All tokens of the last stream are equal, so no residual is left: give a longer text.")
    return Target("what tells tokens apart", direction=residual / size)


def _quoted(index: int, word: str | None) -> str:
    return str(index) if word is None else f"'{word}'"


def _place(position: int) -> str:
    return "the last token" if position == -1 else f"position {position}"


def network_read_by(target: Functional, network: Network) -> Network:
    return target.read_from(network) if isinstance(target, Target) else network


def pulled_back_through_tail(network: Network, target: Functional) -> tuple[Float[Tensor, "*shape"], float]:
    """Return the adjoint of the target at the last stream, and the contribution of the tail's constants (length
    zero).
    """
    with torch.enable_grad():
        leaf = torch.zeros_like(network.streams[-1], requires_grad=True)
        answer = network.finish(Graded.of(network.streams[-1], leaf[None, None, None], 0, "attention"))
        if answer.sums.stop[0] > 1:
            raise RefusalError(
                f"What follows the chosen blocks of {network.name} attends as well (a decoder, most likely): "
                "choose the last stack for values of heads."
            )
        constant = target(answer.parts[0, 0, 0])
        (adjoint,) = torch.autograd.grad(constant, leaf)
    return adjoint, float(constant.detach())


def pulled_back(network: Network, target: Functional) -> tuple[Float[Tensor, "batch token width"], float]:
    """Return T^T c at the stream that enters the first block, and the contribution of constants to the target.

    The frozen network is affine, out = T x + b, so <c, out> = <T^T c, x> + <c, b>. T^T c is one derivative of the
    network's own code, taken along its parts; T is never stored.
    """
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
    """Return T_k^T c for every length k, and the contribution to the target of paths of length k that begin at
    constants.

    With t marking an attention edge, T(t) = sum over k of t^k T_k, and T_k^T c is the adjoint along paths of length k;
    the adjoints of all lengths are carried back side by side (`tape`).
    """
    network = network_read_by(target, network)
    last, constant = pulled_back_through_tail(network, target)
    adjoint = Sums(last[None, None, None])
    constants = last.new_zeros(network.layers + 1)
    constants[0] += constant
    for layer in reversed(range(network.layers)):
        pulled = pulled_through(network, layer, adjoint, "attention")
        if pulled.constants is not None:
            constants[: pulled.constants.stop[0]] += pulled.constants.dense[0, :, 0]
        if pulled.before is None:  # no path from before this block reaches its output
            return last.new_zeros(network.layers + 1, *network.streams[0].shape), constants
        adjoint = pulled.before
    return adjoint.within((0, 0), (network.layers + 1, 1))[0, :, 0], constants
