"""How large individual paths are: the sum of squares of all paths of each length, without visiting them.

Give every head of every layer a random sign s = +-1, the skip the sign +1, and a path the product of its signs. Then
E |sum_p s_p path_p|^2 = sum_p |path_p|^2: two different paths part at some layer, where one takes a head that the
other does not, and that head's sign has mean zero and is independent of all others. (A sign on the skip as well would
change all paths by a common factor.) The signed sums follow the recursion for lengths, one pass for every draw.

What a path contributes to a target is one number, and signed sums of numbers meet in the middle (`meeting`): forward to
a block, the adjoint backward to it, a product for every draw and pair of lengths. Ways through the first blocks and the
last are the same for all draws, which only weigh them (`ends`). Following all draws forward to the end gives the same,
and is what this is tested against.

Where paths of a length cancel, their energy is far above |sum|^2; where they agree, below it by their number.
Paths that begin at constants are not counted: there is one for every bias and continuation, which is no family that
grows with the length alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.edges import edges, multiplied
from attnscope.pathways.ends import Ends, Signs, both_ends, drawn_signs, signed_by_length, signs_of
from attnscope.pathways.graded import Graded, Watch, watching
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_if_recorded
from attnscope.pathways.targets import Functional, seen_by

GROUPS = 2  # of draws that are followed together where they meet in the middle, which takes half the room


@dataclass(frozen=True)
class Energy:
    """Unbiased estimates by length, with their standard errors over draws. `sums` is |sum of all paths|^2, exactly."""

    energy: Float[Tensor, " length"]
    standard_error: Float[Tensor, " length"]
    sums: Float[Tensor, " length"]
    draws: int


def path_energy(
    network: Network,
    draws: int = 64,
    seed: int = 0,
    target: Functional | None = None,
    at_once: int = 8,
    ends: Ends | None = None,
) -> Energy:
    """Energies of the last stream's paths, or of what they contribute to a target; `at_once` draws are held in memory
    together. `ends` are both ends of the paths, where they are known."""
    if draws < 2:
        raise RefusalError(f"A standard error needs two draws or more, not {draws}.")
    network = network if target is None else seen_by(target, network)
    if target is not None and ends is None:
        ends = both_ends(network, target, most=draws)
    blocks = edges(network) if ends is None else ends.blocks
    generator = torch.Generator().manual_seed(seed)

    def squared(signs: Signs) -> Float[Tensor, "draw length"]:
        if ends is None:
            return followed_to_the_end(network, signs).square().flatten(2).sum(-1)
        return _meeting(network, signs, ends).square()

    squares: list[Tensor] = []
    together: list[Signs] = [tuple(network.streams[0].new_ones(1, block.heads) for block in blocks)]  # no signs at all
    for start in range(0, draws, at_once):
        together.append(drawn_signs(blocks, min(at_once, draws - start), generator, network.streams[0]))
        if ends is None or len(together) == GROUPS or start + at_once >= draws:
            squares.append(squared(tuple(map(torch.cat, zip(*together, strict=True)))))
            together = []
    plain, *every = torch.cat(squares)
    drawn = torch.stack(every)
    return Energy(drawn.mean(0), drawn.std(0) / draws**0.5, plain, draws)


@torch.no_grad()
def _meeting(network: Network, signs: Signs, ends: Ends) -> Float[Tensor, "draw length"]:
    """The signed sum of all paths of each length, for every draw."""
    first, last = ends.first, ends.last
    middle = (first + last + 1) // 2
    before = signed_by_length(ends.prefixes, signs_of(ends.prefixes, signs[:first]), ends.streams)
    stream = Sums(before.expand(len(signs[0]), *before.shape[1:])[:, :, None])
    for layer in range(first, middle):
        stream = _signed_block(network, layer, stream, signs[layer])
    after = signed_by_length(ends.suffixes, signs_of(ends.suffixes, signs[last:]), ends.adjoints)
    adjoint = Sums(after.expand(len(signs[0]), *after.shape[1:])[:, :, None])
    for layer in reversed(range(middle, last)):
        with watching(_signing(network, signs[layer])):
            pulled = pulled_if_recorded(network, layer, adjoint, "attention")
        if pulled is None:  # a rule that needs numbers: forward to the end instead
            return torch.einsum("dk...,...->dk", followed_to_the_end(network, signs), ends.goal)
        if pulled.before is None:  # nothing that enters this block leaves it
            return signs[0].new_zeros(len(signs[0]), network.layers + 1)
        adjoint = pulled.before
    products = stream.dense[:, :, 0].flatten(2) @ adjoint.dense[:, :, 0].flatten(2).mT  # [draw, behind, ahead]
    total = products.new_zeros(len(products), products.shape[1] + products.shape[2] - 1)
    for behind in range(products.shape[1]):
        total[:, behind : behind + products.shape[2]] += products[:, behind]
    return total


@torch.no_grad()
def followed_to_the_end(network: Network, signs: Signs) -> Float[Tensor, " draw length *shape"]:
    """Signed sums of all paths that leave the last block: one pass of the recursion for every draw."""
    entering = network.streams[0]
    stream = Sums(entering.expand(len(signs[0]), 1, 1, *entering.shape))
    for layer in range(network.layers):
        stream = _signed_block(network, layer, stream, signs[layer])
    return stream.dense[:, :, 0]


def _signed_block(network: Network, layer: int, stream: Sums, signs: Float[Tensor, "draw head"]) -> Sums:
    with watching(_signing(network, signs)):
        return network.block(layer, Graded.later(network.streams[layer], lambda: stream, None, "attention")).sums


def _signing(network: Network, signs: Float[Tensor, "draw head"]) -> Watch:
    return multiplied(lambda heads: signs, network)
