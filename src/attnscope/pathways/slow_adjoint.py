"""A block's adjoint by running it forward and differentiating: slow and obvious, for any rule that there is.

A frozen block is B_0 + t B_1 + ..., plus constants c_0 + t c_1 + ... that begin in it. All adjoints G^(b) go side by
side as sources of one stream (the block is linear: zeros will do), the derivative of part j of the answer is B_j^T, and
the answer to a stream that is nothing holds the c_j. `tape` gives the same without the run forward; it is tested
against this, and this is what is left where a rule computes with numbers that a tape does not have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.pathways.graded import Count, Graded, watching
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums


def pulled_slowly(
    network: Network, layer: int, adjoint: Sums, count: Count
) -> tuple[Sums | None, Sums | None, list[Sums]]:
    """The adjoint before block `layer`, what its constants add by edges still to come, and the adjoint at the output of
    each attention in it. For counts on one axis."""
    stream, seen = network.streams[layer], []

    def keep(mixed: Graded, pattern: Tensor) -> None:
        seen.append(mixed.sums.parts)

    after = adjoint.dense[0, :, 0]
    before: Sums | None = None
    heads: list[Sums] = []
    with torch.enable_grad(), watching(keep):
        leaf = stream.new_zeros(len(after), 1, 1, *stream.shape).requires_grad_()
        answer = network.block(layer, Graded.of(stream, leaf, None, count))
        for edges in range(answer.sums.first[0], answer.sums.ends[0]):
            part = answer.parts[:, edges, 0]
            grads = torch.autograd.grad(part, [leaf, *seen], after, retain_graph=True, allow_unused=True)
            if grads[0] is not None:
                handed = Sums(grads[0][:, 0, 0][None, :, None], (edges, 0))
                before = handed if before is None else before.plus(handed)
            heads = _with(heads, grads[1:], edges)
    return before, _constants(network, layer, after, count), heads


def _with(heads: list[Sums], grads: tuple[Tensor | None, ...], edges: int) -> list[Sums]:
    """Behind an attention edge, `edges - 1` more edges lead to this part of the answer."""
    found = []
    for place, grad in enumerate(grads):
        known = heads[place] if place < len(heads) else None
        if grad is None:
            assert known is not None or edges == 0, "an attention whose output goes nowhere"
            found += [] if known is None else [known]
            continue
        handed = Sums(grad[:, 0, 0][None, :, None], (max(edges - 1, 0), 0))
        found.append(handed if known is None else known.plus(handed))
    return found


@torch.no_grad()
def _constants(network: Network, layer: int, after: Tensor, count: Count) -> Sums | None:
    stream = network.streams[layer]
    nothing = Graded.of(stream, torch.zeros_like(stream)[None, None, None], 0, count)
    begun = network.block(layer, nothing).parts[0, :, 0]
    total: Sums | None = None
    for edges, constant in enumerate(begun):
        products = (after * constant).flatten(1).sum(1)[None, :, None]
        one = Sums(products, (edges, 0))
        total = one if total is None else total.plus(one)
    return total
