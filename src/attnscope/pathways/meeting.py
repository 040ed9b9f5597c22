"""One number by length of path, meeting in the middle: half the work of following all paths to the end.

Let t mark an edge. A frozen block is a polynomial B_l(t) whose coefficients are linear maps, and for a scalar target
with adjoint g at the last stream (constants are paths that begin later, see below)

    T(t) = < g, B_{L-1}(t) ... B_0(t) x >,     its coefficient of t^m is the sum over all paths of length m.

The product may be cut at any layer M:

    a(t) = B_{M-1}(t) ... B_0(t) x                  sums of paths that reach layer M, by edges behind them
    b(t) = B_M(t)^T ... B_{L-1}(t)^T g              adjoints at layer M, by edges still to come
    T(t) = < b(t), a(t) >,   so   T^(m) = sum over k of < b^(m-k), a^(k) >.

Proof: <g, B y> = <B^T g, y> for every coefficient, and coefficients of a product of polynomials are convolutions. ∎

Cost. With e edges in a block, block l is applied to about e l tensors on the way forward: e L^2 / 2 in all. Cut at M,
it is e M^2 / 2 on one side and e (L - M)^2 / 2 on the other: half of it at M = L/2. Transposed steps cost what the
steps cost, and nothing has to be run forward for them (`tape`). With the sources kept apart, the first side carries two
of everything and the second still one adjoint: the sides cost the least together at M = L/3.

Constants that begin in a block before M are part of a(t). One that begins behind M, at a place whose adjoint is b'(t),
adds < b'(t), constant >. `lengths` follows all paths to the end instead, and is what this is tested against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.progress import Advance, silent
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_through
from attnscope.pathways.targets import Functional, pulled_back_through_tail, seen_by


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
