"""How large individual paths are: the sum of squares of all paths of each length, without visiting them.

Give every head of every block a random sign s = +-1, the skip the sign +1, and a path the product of the signs on it.
Then E |sum_p s_p path_p|^2 = sum_p |path_p|^2: two different paths differ at some block, where one takes a head that
the other does not, and that head's sign has mean zero and is independent of all others. (A sign on the skip as well
would change all paths by a common factor.) The signed sums follow the recursion for lengths, with one pass for every
draw.

What a path contributes to a target is one number, and signed sums of numbers meet in the middle (`lengths.by_length`):
streams are carried forward to a block, the adjoint backward to it, and each draw and pair of lengths needs one product.

Outer routes. A path is a choice at every block (0 the skip, h + 1 head h). All routes through the first M blocks and
through the last L - N are few for small M and L - N: their streams and adjoints are computed once, and a draw of signs
only weighs them. The search for the largest paths uses them too. Following all draws forward to the end gives the same
energies; tests compare the two.

If paths of a length cancel, their energy is far above |sum|^2; if N paths are equal, it is |sum|^2 / N. Paths that
begin at constants are not counted: there is one for every bias and continuation, a family that does not grow with the
length alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.heads import AT_ONCE, BlockTranspose
from attnscope.pathways.lengths import convolved
from attnscope.pathways.network import Edges, Network, edges, scale_heads, split_heads
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_if_recorded
from attnscope.pathways.targets import Functional, network_read_by, pulled_back_through_tail

GROUPS, SMALL_GROUPS = 2, 5  # groups of draws that meet in the middle together
SMALL = 2**18  # numbers in the sums of all lengths up to which memory does not matter

Routes = tuple[tuple[int, ...], ...]
"""Many routes through consecutive blocks: each has one choice per block."""
Signs = tuple[Float[Tensor, "draw head"], ...]
"""The signs of all heads, one tensor per block."""


@dataclass(frozen=True, eq=False)
class OuterRoutes:
    """All routes through the first and the last blocks: `prefixes` lead through the blocks before `first`, `suffixes`
    from block `last` to the end; `goal` is the target's adjoint after the last block.
    """

    blocks: tuple[Edges, ...]
    first: int
    prefixes: Routes
    streams: Float[Tensor, " prefix *shape"]
    last: int
    suffixes: Routes
    adjoints: Float[Tensor, " suffix *shape"]
    goal: Float[Tensor, "*shape"]


@torch.no_grad()
def outer_routes(
    network: Network, target: Functional, most: int, blocks: tuple[Edges, ...] | None = None
) -> OuterRoutes:
    """Enumerate all routes through the first blocks and through the last ones, at most `most` each. `blocks` are the
    edges of the network, if known.
    """
    blocks = edges(network) if blocks is None else blocks
    prefixes: Routes = ((),)
    streams, first = network.streams[0][None], 0
    while first < network.layers and len(prefixes) * len(options(blocks[first])) <= most:
        streams = _every_choice(network, first, blocks[first], streams)
        prefixes = tuple((*route, choice) for route in prefixes for choice in options(blocks[first]))
        first += 1
    suffixes: Routes = ((),)
    goal, _ = pulled_back_through_tail(network, target)
    adjoints, last = goal[None], network.layers
    while last > first and len(suffixes) * len(options(blocks[last - 1])) <= most:
        last -= 1
        pairs = [(index, choice) for choice in options(blocks[last]) for index in range(len(suffixes))]
        transpose = BlockTranspose(network, last)
        adjoints = transpose.to_input(transpose.to_heads(adjoints), *map(list, zip(*pairs, strict=True)))
        suffixes = tuple((choice, *suffixes[index]) for index, choice in pairs)
    return OuterRoutes(blocks, first, prefixes, streams, last, suffixes, adjoints, goal)


def options(block: Edges) -> range:
    """Return the choices at a block; choice 0, the skip, is missing if it is cut."""
    return range(0 if block.skip else 1, block.heads + 1)


def _every_choice(
    network: Network, layer: int, block: Edges, streams: Float[Tensor, " route *shape"]
) -> Float[Tensor, " longer_route *shape"]:
    """Return every stream after every choice at block `layer`; choices of one stream are adjacent.

    The axis that counts attention edges separates the heads: after the watch, head h has index h + 1 and the skip index
    0. One run of the block gives all choices, and mixes the values of each stream once.
    """

    def apart(mixed: Graded, pattern: Tensor) -> Graded:
        sums = mixed.sums
        heads = split_heads(sums.parts[:, 0, 0], network)
        alone = heads.new_zeros(len(heads), heads.shape[2], *heads.shape[1:])
        for head in range(heads.shape[2]):
            alone[:, head, :, head] = heads[:, :, head]
        placed = Sums(alone.reshape(len(heads), -1, *sums.parts.shape[2:]), sums.first)
        return mixed.made(mixed.value, lambda: placed)

    made = []
    for some in torch.split(streams, AT_ONCE):
        graded = Graded.of(network.streams[layer], some[:, None, None], None, "attention")
        with watching(apart):
            made.append(network.block(layer, graded).parts[:, list(options(block)), 0])
    return torch.cat(made).flatten(0, 1)


def drawn_signs(blocks: Sequence[Edges], draws: int, generator: torch.Generator, like: Tensor) -> Signs:
    """Draw random signs for every head, always on the CPU: the same seed gives the same signs on any device."""
    coins = [torch.randint(0, 2, (draws, block.heads), generator=generator, device="cpu") for block in blocks]
    return tuple((2 * coin - 1).to(like) for coin in coins)


def signs_of(routes: Routes, signs: Signs) -> Float[Tensor, "draw route"]:
    """Return the product of the signs on every route; `signs` has one entry per block of the routes."""
    draws = signs[0].new_ones(len(signs[0]), len(routes)) if signs else torch.ones(1, len(routes), device="cpu")
    for place, of_heads in enumerate(signs):
        with_skip = torch.cat([torch.ones_like(of_heads[:, :1]), of_heads], 1)
        draws = draws * with_skip[:, [route[place] for route in routes]]
    return draws


def edges_on(routes: Routes) -> Int[Tensor, " route"]:
    """Return how many heads each route passes."""
    return torch.tensor([sum(choice > 0 for choice in route) for route in routes], device="cpu")


def signed_by_length(
    routes: Routes, signs: Float[Tensor, "draw route"], tensors: Float[Tensor, " route *shape"]
) -> Float[Tensor, " draw length *shape"]:
    """Sum the tensors of all routes of each length, weighted by their signs, for every draw."""
    lengths = edges_on(routes)
    longest = int(lengths.max())
    of_length = torch.stack([(lengths == k).to(tensors) for k in range(longest + 1)])
    weights = signs.to(tensors)[:, None] * of_length  # [draw, length, route]
    return (weights.flatten(0, 1) @ tensors.flatten(1)).reshape(len(signs), longest + 1, *tensors.shape[1:])


@dataclass(frozen=True)
class Energy:
    """Unbiased estimates of the energy of each length, with standard errors over draws. `sums` is exactly |sum of
    paths|^2; None if it was not asked for.
    """

    energy: Float[Tensor, " length"]
    standard_error: Float[Tensor, " length"]
    sums: Float[Tensor, " length"] | None
    draws: int


def path_energy(
    network: Network,
    draws: int = 64,
    seed: int = 0,
    target: Functional | None = None,
    at_once: int = 8,
    outer: OuterRoutes | None = None,
    sums: bool = True,
) -> Energy:
    """Estimate the energy of the paths to the last stream, or of their contributions to a target. `at_once` draws are
    held in memory together. `outer` are the outer routes, if known. `sums` says whether to compute |sum of paths|^2
    too, which costs as much as one draw.
    """
    if draws < 2:
        raise RefusalError(f"A standard error needs two draws or more, not {draws}.")
    network = network if target is None else network_read_by(target, network)
    if target is not None and outer is None:
        outer = outer_routes(network, target, most=draws)
    blocks = edges(network) if outer is None else outer.blocks
    generator = torch.Generator().manual_seed(seed)

    def squared(signs: Signs) -> Float[Tensor, "draw length"]:
        if outer is None:
            return signed_sums_forward(network, signs).square().flatten(2).sum(-1)
        return _signed_targets(network, signs, outer).square()

    squares: list[Tensor] = []
    unsigned = tuple(network.streams[0].new_ones(1, block.heads) for block in blocks)  # all signs +1
    together: list[Signs] = [unsigned] if sums else []
    groups = SMALL_GROUPS if network.streams[0].numel() * (network.layers + 1) <= SMALL else GROUPS
    for start in range(0, draws, at_once):
        together.append(drawn_signs(blocks, min(at_once, draws - start), generator, network.streams[0]))
        if outer is None or len(together) == groups or start + at_once >= draws:
            squares.append(squared(tuple(map(torch.cat, zip(*together, strict=True)))))
            together = []
    every = torch.cat(squares)
    drawn = every[int(sums) :]
    return Energy(drawn.mean(0), drawn.std(0) / draws**0.5, every[0] if sums else None, draws)


@torch.no_grad()
def _signed_targets(network: Network, signs: Signs, outer: OuterRoutes) -> Float[Tensor, "draw length"]:
    """Return, for every draw and length, the target of the signed sum of all paths, meeting in the middle."""
    first, last = outer.first, outer.last
    middle = (first + last + 1) // 2
    before = signed_by_length(outer.prefixes, signs_of(outer.prefixes, signs[:first]), outer.streams)
    stream = Sums(before.expand(len(signs[0]), *before.shape[1:])[:, :, None])
    for layer in range(first, middle):
        stream = _signed_block(network, layer, stream, signs[layer])
    after = signed_by_length(outer.suffixes, signs_of(outer.suffixes, signs[last:]), outer.adjoints)
    adjoint = Sums(after.expand(len(signs[0]), *after.shape[1:])[:, :, None])
    for layer in reversed(range(middle, last)):
        with watching(scale_heads(lambda heads, layer=layer: signs[layer], network)):  # type: ignore[misc]
            pulled = pulled_if_recorded(network, layer, adjoint, "attention")
        if pulled is None:  # a rule needs actual numbers: run forward to the end instead
            return torch.einsum("dk...,...->dk", signed_sums_forward(network, signs), outer.goal)
        if pulled.before is None:  # no path from before this block reaches its output
            return signs[0].new_zeros(len(signs[0]), network.layers + 1)
        adjoint = pulled.before
    return convolved(stream.dense[:, :, 0].flatten(2), adjoint.dense[:, :, 0].flatten(2))


@torch.no_grad()
def signed_sums_forward(network: Network, signs: Signs) -> Float[Tensor, " draw length *shape"]:
    """Return the signed sums of all paths at the last block's output, by one pass of the recursion for every draw."""
    entering = network.streams[0]
    stream = Sums(entering.expand(len(signs[0]), 1, 1, *entering.shape))
    for layer in range(network.layers):
        stream = _signed_block(network, layer, stream, signs[layer])
    return stream.dense[:, :, 0]


def _signed_block(network: Network, layer: int, stream: Sums, signs: Float[Tensor, "draw head"]) -> Sums:
    with watching(scale_heads(lambda heads: signs, network)):
        return network.block(layer, Graded.later(network.streams[layer], lambda: stream, None, "attention")).sums
