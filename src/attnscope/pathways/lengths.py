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
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.graded import Count, Graded
from attnscope.pathways.network import Network

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
