"""A network at one input: the streams between its blocks, and each block as a function of a graded stream.

This is all that path decompositions need to know of a model. Blocks run the model's own code; what they freeze they
take from the value that the graded stream carries, so a block must be given the stream that really entered it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.paths.graded import Count, Frozen, Graded

Piece = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """`streams[l]` enters block l, `streams[-1]` leaves the last, and `tail` makes the output of it."""

    name: str
    streams: tuple[Float[Tensor, "batch token width"], ...]
    blocks: tuple[Piece, ...]
    tail: Piece
    output: Tensor

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def block(self, layer: int, stream: Graded) -> Graded:
        return followed(self.blocks[layer](stream), f"block {layer} of {self.name}")

    def finish(self, stream: Graded) -> Graded:
        return followed(self.tail(stream), f"what follows the last block of {self.name}")

    def entering(self, count: Count = "attention") -> Graded:
        return Graded.entering(self.streams[0], count)


def followed(answer: Tensor, where: str) -> Graded:
    """The answer, if it is still a sum of paths; a refusal that names the function that ended it otherwise."""
    if isinstance(answer, Graded):
        return answer
    cause = f"'{answer.origin}' is not linear and has no rule" if isinstance(answer, Frozen) else "the stream was lost"
    raise RefusalError(f"The paths through {where} cannot be followed ({cause}): choose another model or stack.")


def largest_difference(network: Network) -> float:
    """Does the linear network give every block's output? Largest difference relative to the stream's largest entry."""
    worst = 0.0
    for layer in range(network.layers):
        left = network.block(layer, Graded.entering(network.streams[layer]))
        worst = max(worst, relative_difference(left.parts.sum((0, 1, 2)), network.streams[layer + 1]))
    last = network.finish(Graded.entering(network.streams[-1]))
    return max(worst, relative_difference(last.parts.sum((0, 1, 2)), network.output))


def relative_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / (other.abs().max() + 1e-30))
