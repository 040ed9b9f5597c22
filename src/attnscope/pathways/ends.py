"""The two ends of all paths, written out: the first blocks of every path, and the last, as long as they are few.

A path is a choice at every block (0 the skip, h + 1 head h). The streams of all ways through the first M blocks, and
the adjoints of all ways through the last L - N, are few for small M and L - N, and every path is one of the first, a
way through the middle, and one of the last. Whatever gives signs to heads is then a weighted sum of these at both
ends: all draws of signs share them, and so do energies and the search for the largest paths.

Heads are kept apart by the axis that counts attention edges: behind a watch, head h stands at place h + 1, the skip at
place 0, and one run of a block gives all choices, with the values of each stream mixed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.core.progress import Advance, silent
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.heads import AT_ONCE, Opened
from attnscope.pathways.network import Edges, Network, edges, heads_apart
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_through
from attnscope.pathways.targets import Functional, pulled_back_through_tail, seen_by

Ways = tuple[tuple[int, ...], ...]
"""Choices at one block after the other, of many ways."""

Signs = tuple[Float[Tensor, "draw head"], ...]
"""By block."""


@dataclass(frozen=True, eq=False)
class Ends:
    """`prefixes` lead through blocks 0 to `first` - 1, `suffixes` through `last` to the end; `goal` is the target's
    adjoint there."""

    blocks: tuple[Edges, ...]
    first: int
    prefixes: Ways
    streams: Float[Tensor, " prefix *shape"]
    last: int
    suffixes: Ways
    adjoints: Float[Tensor, " suffix *shape"]
    goal: Float[Tensor, "*shape"]


@torch.no_grad()
def both_ends(network: Network, target: Functional, most: int, blocks: tuple[Edges, ...] | None = None) -> Ends:
    """As many blocks at both ends as have no more than `most` ways through them. `blocks` are the edges of the network,
    where they are known."""
    blocks = edges(network) if blocks is None else blocks
    prefixes: Ways = ((),)
    streams, first = network.streams[0][None], 0
    while first < network.layers and len(prefixes) * len(options(blocks[first])) <= most:
        streams = _every_choice(network, first, blocks[first], streams)
        prefixes = tuple((*way, choice) for way in prefixes for choice in options(blocks[first]))
        first += 1
    suffixes: Ways = ((),)
    goal, _ = pulled_back_through_tail(network, target)
    adjoints, last = goal[None], network.layers
    while last > first and len(suffixes) * len(options(blocks[last - 1])) <= most:
        last -= 1
        pairs = [(place, choice) for choice in options(blocks[last]) for place in range(len(suffixes))]
        opened = Opened(network, last)
        adjoints = opened.onwards(opened.halfway(adjoints), *map(list, zip(*pairs, strict=True)))
        suffixes = tuple((choice, *suffixes[place]) for place, choice in pairs)
    return Ends(blocks, first, prefixes, streams, last, suffixes, adjoints, goal)


def options(block: Edges) -> range:
    """The choices at a block: where its skip is cut there is no choice 0."""
    return range(0 if block.skip else 1, block.heads + 1)


def _every_choice(
    network: Network, layer: int, block: Edges, streams: Float[Tensor, " way *shape"]
) -> Float[Tensor, " longer_way *shape"]:
    """Every stream behind every choice at block `layer`, choices of one stream beside each other."""

    def apart(mixed: Graded, pattern: Tensor) -> Graded:
        sums = mixed.sums
        heads = heads_apart(sums.parts[:, 0, 0], network)
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
    """Random signs for every head. Drawn by the CPU wherever the network is: the same seed means the same signs."""
    coins = [torch.randint(0, 2, (draws, block.heads), generator=generator, device="cpu") for block in blocks]
    return tuple((2 * one - 1).to(like) for one in coins)


def signs_of(ways: Ways, signs: Signs) -> Float[Tensor, "draw way"]:
    """The product of the signs on every way; `signs` are those of the blocks that ways lead through."""
    draws = signs[0].new_ones(len(signs[0]), len(ways)) if signs else torch.ones(1, len(ways), device="cpu")
    for place, of_heads in enumerate(signs):
        with_skip = torch.cat([torch.ones_like(of_heads[:, :1]), of_heads], 1)
        draws = draws * with_skip[:, [way[place] for way in ways]]
    return draws


def edges_on(ways: Ways) -> Int[Tensor, " way"]:
    """How many heads each way passes."""
    return torch.tensor([sum(choice > 0 for choice in way) for way in ways], device="cpu")


def signed_by_length(
    ways: Ways, signs: Float[Tensor, "draw way"], tensors: Float[Tensor, " way *shape"]
) -> Float[Tensor, " draw length *shape"]:
    """Ways of equal length added up with their signs, for every draw."""
    lengths = edges_on(ways)
    longest = int(lengths.max())
    of_length = torch.stack([(lengths == k).to(tensors) for k in range(longest + 1)])
    weights = signs.to(tensors)[:, None] * of_length  # [draw, length, way]
    return (weights.flatten(0, 1) @ tensors.flatten(1)).reshape(len(signs), longest + 1, *tensors.shape[1:])


# One number by length of path, meeting in the middle: half the work of following all paths to the end.
#
# Let t mark an edge. A frozen block is a polynomial B_l(t) whose coefficients are linear maps, and for a scalar target
# with adjoint g at the last stream (constants are paths that begin later, see below)
#
#     T(t) = < g, B_{L-1}(t) ... B_0(t) x >,     its coefficient of t^m is the sum over all paths of length m.
#
# The product may be cut at any layer M:
#
#     a(t) = B_{M-1}(t) ... B_0(t) x                  sums of paths that reach layer M, by edges behind them
#     b(t) = B_M(t)^T ... B_{L-1}(t)^T g              adjoints at layer M, by edges still to come
#     T(t) = < b(t), a(t) >,   so   T^(m) = sum over k of < b^(m-k), a^(k) >.
#
# Proof: <g, B y> = <B^T g, y> for every coefficient, and coefficients of a product of polynomials are convolutions. ∎
#
# Cost. With e edges in a block, block l is applied to about e l tensors on the way forward: e L^2 / 2 in all. Cut at M,
# it is e M^2 / 2 on one side and e (L - M)^2 / 2 on the other: half of it at M = L/2. Transposed steps cost what the
# steps cost, and nothing has to be run forward for them (`tape`). With the sources kept apart, the first side carries
# two of everything and the second still one adjoint: the sides cost the least together at M = L/3.
#
# Constants that begin in a block before M are part of a(t). One that begins behind M, at a place whose adjoint is
# b'(t), adds < b'(t), constant >. `lengths` follows all paths to the end instead, and is what this is tested against.


@dataclass(frozen=True)
class ByLength:
    """The target summed over all paths of each source (input, constants) and length; `middle` is where sides met."""

    values: Float[Tensor, "source length"]
    middle: int

    @property
    def lengths(self) -> Float[Tensor, " length"]:
        return self.values.sum(0)


@torch.no_grad()
def by_length(
    network: Network,
    target: Functional,
    count: Literal["attention", "edges"] = "edges",
    sources: bool = True,
    middle: int | None = None,
    advance: Advance = silent,
) -> ByLength:
    """The target by number of attention edges, or of edges of both kinds. Without `sources`, what begins at a constant
    is not kept apart from what begins at the input: the first row has both."""
    network = seen_by(target, network)
    middle = round(network.layers / (3 if sources else 2)) if middle is None else middle
    stream = network.entering(count, sources)
    for layer in range(middle):
        stream = network.block(layer, stream)
        advance("lengths", layer + 1, network.layers)
    last, constant = pulled_back_through_tail(network, target)
    adjoint: Sums | None = Sums(last[None, None, None])
    begun = [Sums(last.new_full((1, 1, 1), constant))]
    for layer in reversed(range(middle, network.layers)):
        assert adjoint is not None
        pulled = pulled_through(network, layer, adjoint, count)
        begun += [] if pulled.constants is None else [pulled.constants]
        adjoint = pulled.before
        advance("lengths", network.layers - layer + middle, network.layers)
        if adjoint is None:  # nothing that enters this block leaves it
            break
    before = stream.parts[:, :, 0].flatten(2)
    values = last.new_zeros(2, 1) if adjoint is None else _convolved(before, adjoint.dense[0, :, 0].flatten(1))
    longest = max(values.shape[1], *(one.ends[0] for one in begun))
    total = values.new_zeros(2, longest)
    total[: len(values), : values.shape[1]] += values
    for one in begun:
        total[1 if sources else 0, : one.ends[0]] += one.dense[0, :, 0]
    return ByLength(total, middle)


def _convolved(
    before: Float[Tensor, "source behind entry"], adjoint: Float[Tensor, "ahead entry"]
) -> Float[Tensor, "source length"]:
    """Products of equal behind + ahead, added up."""
    products = before @ adjoint.mT
    total = products.new_zeros(len(products), products.shape[1] + products.shape[2] - 1)
    for behind in range(products.shape[1]):
        total[:, behind : behind + products.shape[2]] += products[:, behind]
    return total
