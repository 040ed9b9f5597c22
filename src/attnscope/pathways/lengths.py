"""The sum of all paths of each length, exactly, in one pass.

Theorem (arXiv:2103.03404, Theorem 2.1, with skips, norms and MLPs kept). Freeze patterns A, norm denominators and
gates. Then the output is linear in the stream that enters, plus constants, and the sum of all paths with m attention
edges follows

    Y_{l+1}^(m) = B_l0 Y_l^(m) + B_l1 Y_l^(m-1)

where B_l0 collects all ways through block l that pass no head (the skip, norms, MLPs) and B_l1 those that pass one.
Proof: a path of m edges that leaves the block passed no head there, and had m edges before, or one, and had m - 1; both
maps are linear, so they may be applied to the sum. The recursion costs L(L+1)/2 blocks where (H+1)^L paths would have
to be summed. `Graded` applies it to the actual operations of the model's blocks.

One number by length, meeting in the middle: half the work of following all paths to the end. Let t mark an edge. A
frozen block is a polynomial B_l(t) whose coefficients are linear maps, and for a scalar target with adjoint g at the
last stream (constants are paths that begin later, see below)

    T(t) = < g, B_{L-1}(t) ... B_0(t) x >,     its coefficient of t^m is the sum over all paths of length m.

The product may be cut at any block M:

    a(t) = B_{M-1}(t) ... B_0(t) x                  sums of paths that reach block M, by edges passed
    b(t) = B_M(t)^T ... B_{L-1}(t)^T g              adjoints at block M, by edges still to come
    T(t) = < b(t), a(t) >,   so   T^(m) = sum over k of < b^(m-k), a^(k) >.

Proof: <g, B y> = <B^T g, y> for every coefficient, and coefficients of a product of polynomials are convolutions. ∎

Cost. With e edges in a block, block l is applied to about e l tensors on the way forward: e L^2 / 2 in all. Cut at M,
the cost is e M^2 / 2 on one side and e (L - M)^2 / 2 on the other: half of it in total at M = L/2. A transposed step
costs as much as the step, and nothing has to be run forward for it (`tape`). With the sources kept apart, the first
side carries two of everything and the second still one adjoint: the sides cost the least together at M = L/3.

Constants that begin in a block before M are part of a(t). A constant that begins after M, at a place whose adjoint is
b'(t), adds < b'(t), constant >. `lengths` follows all paths to the end instead; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.progress import Advance, silent
from attnscope.matrix.residual import relative_residual, residual_about_mean
from attnscope.pathways.graded import Count, Graded
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_through
from attnscope.pathways.targets import Functional, network_read_by, pulled_back_through_tail


@dataclass(frozen=True)
class Lengths:
    """The last stream by length: `stream.parts[source, m, p]` sums all paths with m attention and p MLP edges."""

    stream: Graded
    network: Network

    @property
    def by_length(self) -> Float[Tensor, " length *shape"]:
        """One tensor per number of attention edges (or of all edges, if those are counted): summed over sources and MLP
        edges.
        """
        return self.stream.parts.sum((0, 2))

    def output(self, kept: Float[Tensor, "*shape"]) -> Tensor:
        """Return the model's output if its last stream were `kept`, with the denominators of norms unchanged."""
        graded = Graded.of(self.stream.value, kept[None, None, None], 0, self.stream.count)
        return self.network.finish(graded).parts.sum((0, 1, 2))

    def cumulative(self) -> Iterator[Tensor]:
        """Yield the model's output with paths of length <= k only, for k = 0, 1, ...; the last is the full output."""
        kept = torch.zeros_like(self.stream.value)
        for part in self.by_length:
            kept = kept + part
            yield self.output(kept)

    def without(self, length: int) -> Tensor:
        """Return the model's output without the paths of one length."""
        return self.output(self.stream.value - self.by_length[length])


@torch.no_grad()
def lengths(network: Network, count: Count = "attention", sources: bool = True) -> Lengths:
    """Decompose the output of the last block by length of path. Without `sources`, paths that begin at a constant
    and paths that begin at the input are summed, which is half the work."""
    stream = network.entering(count, sources)
    for layer in range(network.layers):
        stream = network.block(layer, stream)
    return Lengths(stream, network)


@dataclass(frozen=True)
class RankView:
    """Whether long paths keep tokens different. `residual` is the relative residual of the sum of paths of each length,
    and `share` its share of the residual of the whole stream (by projection on it).

    A path through attention alone is a product of row-stochastic patterns, and such products tend to rank one
    (arXiv:2103.03404, section 2). Sums of long paths in a whole model need not: MLPs and norms act on every token by
    itself.
    """

    residual: Float[Tensor, "length batch"]
    whole: Float[Tensor, " batch"]
    share: Float[Tensor, "length batch"]


@torch.no_grad()
def rank_view(found: Lengths, token_mask: Bool[Tensor, "batch token"] | None = None) -> RankView:
    """Measure the stream that leaves the last block. Shares add up to one; all is zero for sequences of one token."""
    stream, lengths = found.stream.value, found.by_length
    apart = residual_about_mean(stream, token_mask)
    size = apart.square().sum((1, 2))
    parts = [(residual_about_mean(part, token_mask) * apart).sum((1, 2)) for part in lengths]
    return RankView(
        residual=torch.stack([relative_residual(part, token_mask) for part in lengths]),
        whole=relative_residual(stream, token_mask),
        share=torch.stack(parts) / size.clamp_min(torch.finfo(size.dtype).tiny),
    )


@dataclass(frozen=True)
class ByLength:
    """The target summed over all paths of each source (input, constants) and length; `middle` is the block where both
    sides met.
    """

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
    """Return the target by number of attention edges, or of edges of both kinds. Without `sources`, the first row sums
    paths from the input and paths from constants."""
    network = network_read_by(target, network)
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
        if adjoint is None:  # no path from before this block reaches its output
            break
    before = stream.parts[:, :, 0].flatten(2)
    values = last.new_zeros(2, 1) if adjoint is None else convolved(before, adjoint.dense[0, :, 0].flatten(1))
    longest = max(values.shape[1], *(constants.stop[0] for constants in begun))
    total = values.new_zeros(2, longest)
    total[: len(values), : values.shape[1]] += values
    for constants in begun:
        total[1 if sources else 0, : constants.stop[0]] += constants.dense[0, :, 0]
    return ByLength(total, middle)


def convolved(
    before: Float[Tensor, "many behind entry"], adjoint: Float[Tensor, "*batch ahead entry"]
) -> Float[Tensor, "many length"]:
    """Return the inner products, summed over all pairs with equal `behind + ahead`."""
    products = before @ adjoint.mT
    total = products.new_zeros(len(products), products.shape[1] + products.shape[2] - 1)
    for behind in range(products.shape[1]):
        total[:, behind : behind + products.shape[2]] += products[:, behind]
    return total
