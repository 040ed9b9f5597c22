"""A network at one input: the streams between its blocks, and each block as a function of a graded stream.

This is all that path decompositions need to know of a model. Blocks run the model's own code; what they freeze they
take from the value that the graded stream carries, so a block must be given the stream that really entered it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import Count, Frozen, Graded
from attnscope.pathways.memory import Memory, remembering

Piece = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """`streams[l]` enters block l, `streams[-1]` leaves the last, and `tail` makes the output of it."""

    name: str
    streams: tuple[Float[Tensor, "batch token width"], ...]
    blocks: tuple[Piece, ...]
    tail: Piece
    output: Tensor
    apart: float = math.nan  # the largest of `differences`, where they were looked at
    memories: dict[int, Memory] = field(default_factory=lambda: defaultdict(Memory), compare=False, repr=False)

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def block(self, layer: int, stream: Graded) -> Graded:
        """Block `layer`, frozen where the model was, on the parts of `stream`."""
        own = stream.made(self.streams[layer], stream.deferred)
        with remembering(self.memories[layer], largest=8 * self.streams[layer].numel()):
            answer = followed(self.blocks[layer](own), f"block {layer} of {self.name}")
            answer.deferred()  # here, so that what the block froze can be let go
        return answer

    def finish(self, stream: Graded) -> Graded:
        return followed(self.tail(stream), f"what follows the last block of {self.name}")

    @property
    def without_tail(self) -> Network:
        """The same, ending where the last block ends."""
        return replace(self, tail=_nothing_more, output=self.streams[-1])

    def entering(self, count: Count = "attention", sources: bool = True) -> Graded:
        return Graded.entering(self.streams[0], count, sources)


def _nothing_more(stream: Tensor) -> Tensor:
    return stream


def followed(answer: Tensor, where: str) -> Graded:
    """The answer, if it is still a sum of paths; a refusal that names the function that ended it otherwise."""
    if isinstance(answer, Graded):
        return answer
    cause = f"'{answer.origin}' is not linear and has no rule" if isinstance(answer, Frozen) else "the stream was lost"
    raise RefusalError(f"The paths through {where} cannot be followed ({cause}): choose another model or stack.")


def differences(network: Network) -> tuple[float, ...]:
    """Does the linear network give the output of every block, and of what follows them? Largest differences relative
    to the largest entry. Constants stand apart: what is added to every part by mistake would not show in one."""
    found = []
    for layer in range(network.layers):
        left = network.block(layer, Graded.entering(network.streams[layer], "none"))
        found.append(relative_difference(left.parts.sum((0, 1, 2)), network.streams[layer + 1]))
    last = network.finish(Graded.entering(network.streams[-1], "none"))
    return (*found, relative_difference(last.parts.sum((0, 1, 2)), network.output))


def relative_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / (other.abs().max() + 1e-30))
