"""The sum of all paths of each length, exactly, in one pass.

Theorem (arXiv:2103.03404, Theorem 2.1, with skips, norms and MLPs kept). Freeze patterns A, norm denominators and
gates. Then the output is linear in the stream that enters, plus constants, and the sum of all paths with m attention
edges follows

    Y_{l+1}^(m) = B_l0 Y_l^(m) + B_l1 Y_l^(m-1)

where B_l0 collects all ways through block l that pass no head (the skip, norms, MLPs) and B_l1 those that pass one.
Proof: a path of m edges that leaves the block passed no head there, and had m edges before, or one, and had m - 1;
both are linear, so they may be applied to the sum. The recursion costs L(L+1)/2 blocks where (H+1)^L paths would have
to be summed. `Graded` applies it to whatever the blocks of a model really do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.residual import relative_residual, residual_about_mean
from attnscope.pathways.ends import Ends, Signs, both_ends, drawn_signs, signed_by_length, signs_of
from attnscope.pathways.graded import Count, Graded, Watch, watching
from attnscope.pathways.network import Network, edges, multiplied, number_of_paths
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_if_recorded
from attnscope.pathways.targets import Functional, seen_by

SOURCES = ("stream", "constants")


@dataclass(frozen=True)
class Lengths:
    """`stream.parts[source, m, p]` is the sum over all paths from that source with m attention and p MLP edges."""

    stream: Graded
    network: Network

    @property
    def longest(self) -> int:
        """Edges of the longest path."""
        return int(self.stream.parts.shape[1]) - 1

    @property
    def by_length(self) -> Float[Tensor, " length *shape"]:
        """Sums over sources and MLP edges: one tensor per number of attention edges (of all edges, when counted so)."""
        return self.stream.parts.sum((0, 2))

    def output(self, kept: Float[Tensor, "*shape"]) -> Tensor:
        """What the model would say if its last stream were `kept`, with norms frozen where they were."""
        graded = Graded.of(self.stream.value, kept[None, None, None], 0, self.stream.count)
        return self.network.finish(graded).parts.sum((0, 1, 2))

    def cumulative(self) -> Iterator[Tensor]:
        """The model's output when only paths of length <= k count, for k = 0, 1, ...: the last one is its own."""
        kept = torch.zeros_like(self.stream.value)
        for part in self.by_length:
            kept = kept + part
            yield self.output(kept)

    def without(self, length: int) -> Tensor:
        """The model's output when all paths but those of one length count."""
        return self.output(self.stream.value - self.by_length[length])


@torch.no_grad()
def lengths(network: Network, count: Count = "attention", sources: bool = True) -> Lengths:
    """Sort everything that leaves the last block by length of path. Without `sources`, paths that begin at a constant
    are not kept apart from those that begin at the input, which is half the work."""
    stream = network.entering(count, sources)
    for layer in range(network.layers):
        stream = network.block(layer, stream)
    return Lengths(stream, network)


# The mean path of length k: the sum of all of them over their number, which replaces drawing some at random.


def mean_path(found: Lengths) -> Float[Tensor, " length *shape"]:
    """Y^(k) over the number of its paths, k = 0, 1, ..., of those that begin at the input; zero where there is none.

    The number is C(L, k) H^k where every block has a skip and H heads (`edges.number_of_paths`).
    """
    stream = found.stream
    if stream.count not in ("attention", "both") or stream.parts.shape[0] != len(SOURCES):
        raise RefusalError("A mean path needs lengths counted by attention edges, with sources kept apart.")
    sums = stream.parts[0].sum(1)
    counts = sums.new_tensor([float(max(1, c)) for c in number_of_paths(found.network)])
    return sums / counts[: len(sums)].reshape(-1, *[1] * (sums.ndim - 1))


# Do long paths carry tokens apart? The relative residual of the sum of all paths of each length.
#
# A path through attention alone is a product of row-stochastic patterns, and such products tend to rank one
# (arXiv:2103.03404, section 2). Whether sums of long paths do in a whole model, where MLPs and norms act on every token
# by itself, is what `residual` measures; `share` says from which lengths comes what tells tokens apart: the projection
# of each length's residual on the residual of the whole stream.


@dataclass(frozen=True)
class RankView:
    """By length: the relative residual of its sum for every sequence, and its share of the whole stream's residual."""

    residual: Float[Tensor, "length batch"]
    whole: Float[Tensor, " batch"]
    share: Float[Tensor, "length batch"]


@torch.no_grad()
def rank_view(found: Lengths, token_mask: Bool[Tensor, "batch token"] | None = None) -> RankView:
    """Of the stream that leaves the last block. Shares add up to one; all is zero for sequences of one token."""
    stream, lengths = found.stream.value, found.by_length
    apart = residual_about_mean(stream, token_mask)
    size = apart.square().sum((1, 2))
    parts = [(residual_about_mean(part, token_mask) * apart).sum((1, 2)) for part in lengths]
    return RankView(
        residual=torch.stack([relative_residual(part, token_mask) for part in lengths]),
        whole=relative_residual(stream, token_mask),
        share=torch.stack(parts) / size.clamp_min(torch.finfo(size.dtype).tiny),
    )


# How large individual paths are: the sum of squares of all paths of each length, without visiting them.
#
# Give every head of every layer a random sign s = +-1, the skip the sign +1, and a path the product of its signs. Then
# E |sum_p s_p path_p|^2 = sum_p |path_p|^2: two different paths part at some layer, where one takes a head that the
# other does not, and that head's sign has mean zero and is independent of all others. (A sign on the skip as well would
# change all paths by a common factor.) The signed sums follow the recursion for lengths, one pass for every draw.
#
# What a path contributes to a target is one number, and signed sums of numbers meet in the middle (`meeting`):
# forward to a block, the adjoint backward to it, a product for every draw and pair of lengths. Ways through the first
# blocks and the last are the same for all draws, which only weigh them (`ends`). Following all draws forward to the
# end gives the same, and is what this is tested against.
#
# Where paths of a length cancel, their energy is far above |sum|^2; where they agree, below it by their number.
# Paths that begin at constants are not counted: there is one for every bias and continuation, which is no family that
# grows with the length alone.

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
