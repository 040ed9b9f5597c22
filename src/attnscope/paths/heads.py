"""What every head is worth: a head x length table and exact Shapley values, for any linear target of the output.

Let T be a linear functional of the output (a logit, a difference of logits). T of the frozen network is a sum over
paths; each path uses a set of heads. Write c_k(l, h) for the sum over all paths of length k that go through head h of
layer l.

Table. With Y_l^(a) the sum of paths of length a that reach layer l, and G_l^(b) the adjoint of T along all
continuations that use b more attention edges,

    c_k(l, h) = sum over a + 1 + b = k of  < G_{l+1}^(b) pulled back to head h,  A_lh Y_l^(a) W_lh >

because a path through (l, h) is a beginning, the edge itself, and a continuation. The adjoint follows the transposed
recursion G_l^(b) = B_l0^T G_{l+1}^(b) + B_l1^T G_{l+1}^(b-1), where block l is B_l0 + t B_l1 with t marking an
attention edge.

Shapley. As a game in which heads are players and a coalition keeps exactly the paths all of whose heads are in it, T
is a sum of unanimity games, one per path with at least one head, each shared equally by the k heads of the path
(Shapley 1953). So

    phi(l, h) = sum over k of  c_k(l, h) / k,      and the phi add up to T minus its paths of length zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.construction import Advance, silent
from attnscope.core.errors import RefusalError
from attnscope.paths.graded import Graded, watching
from attnscope.paths.lengths import streams_by_length
from attnscope.paths.network import Network

Target = Callable[[Tensor], Tensor]
"""A linear functional of the model's output, to one number."""


@dataclass(frozen=True)
class HeadTable:
    """`contributions[l, h, k]` is c_k(l, h); `lengths[k]` the target summed over all paths of length k."""

    contributions: Float[Tensor, "layer head length"]
    lengths: Float[Tensor, " length"]

    @property
    def shapley(self) -> Float[Tensor, "layer head"]:
        k = torch.arange(self.contributions.shape[2]).clamp_min(1)
        return (self.contributions / k).sum(-1)

    @property
    def total(self) -> float:
        return float(self.lengths.sum())


def head_table(network: Network, target: Target, advance: Advance = silent) -> HeadTable:
    """The exact head x length table of `target`, by one graded pass forward and one backward."""
    streams = list(streams_by_length(network))
    adjoint = _pulled_back_through_tail(network, streams[-1], target)[None]  # [b, *shape]
    by_length = _by_length(network, streams[-1], target)
    rows = []
    for layer in reversed(range(network.layers)):
        forward = _mixed_parts(network, layer, streams[layer])  # [a, batch, head, token, channel]
        adjoint, pulled = _pulled_back(network, layer, streams[layer], adjoint)  # [b, batch, head, token, channel]
        pairs = torch.einsum("anhtc,bnhtc->hab", forward, pulled)
        rows.append(_collected(pairs, network.layers + 1))
        streams.pop()
        advance("heads", network.layers - layer, network.layers)
    return HeadTable(torch.stack(rows[::-1]), by_length)


def _collected(pairs: Float[Tensor, "head before after"], lengths: int) -> Float[Tensor, "head length"]:
    """Sum pairs (a, b) of equal a + 1 + b."""
    collected = pairs.new_zeros(pairs.shape[0], lengths)
    for a in range(pairs.shape[1]):
        for b in range(pairs.shape[2]):
            if a + 1 + b < lengths:
                collected[:, a + 1 + b] += pairs[:, a, b]
    return collected


@torch.no_grad()
def _by_length(network: Network, last: Graded, target: Target) -> Float[Tensor, " length"]:
    """The target of every length. Constants of the tail are paths of length zero."""
    answer = network.finish(last).parts.sum((0, 2))
    return torch.stack([target(part) for part in answer])


def _pulled_back_through_tail(network: Network, last: Graded, target: Target) -> Float[Tensor, "*shape"]:
    with torch.enable_grad():
        leaf = torch.zeros_like(last.value, requires_grad=True)
        answer = network.finish(Graded.of(last.value, leaf[None, None, None], None, last.count))
        (adjoint,) = torch.autograd.grad(target(answer.parts[0, 0, 0]), leaf)
    return adjoint


@torch.no_grad()
def _mixed_parts(network: Network, layer: int, stream: Graded) -> Float[Tensor, "before batch head token channel"]:
    """What every head adds to every length: its mixed values A_h Y^(a) V_h, before the output projection."""
    seen: list[Tensor] = []

    def keep(mixed: Graded, pattern: Tensor) -> None:
        seen.append(mixed.parts[:, 1:].sum((0, 2)))

    with watching(keep):
        network.block(layer, stream)
    return _one_attention(seen, network, layer)


def _pulled_back(
    network: Network, layer: int, stream: Graded, adjoint: Float[Tensor, "after *shape"]
) -> tuple[Float[Tensor, "after_plus_one *shape"], Float[Tensor, "after batch head token channel"]]:
    """The adjoint before block `layer`, and at its heads.

    The block is linear, so its transpose does not depend on where it is taken: parts are zero. Every adjoint G^(b) is
    a source of its own; edge 0 of the answer is B_l0 y, edge 1 is B_l1 y.
    """
    seen: list[Tensor] = []

    def keep(mixed: Graded, pattern: Tensor) -> None:
        seen.append(mixed.parts)

    with torch.enable_grad(), watching(keep):
        leaf = torch.zeros(len(adjoint), 1, 1, *stream.shape, dtype=stream.dtype, requires_grad=True)
        answer = network.block(layer, Graded.of(stream.value, leaf, None, "attention"))
        zeroth = torch.autograd.grad(answer.parts[:, 0, 0], leaf, adjoint, retain_graph=True, allow_unused=True)[0]
        mixed = _one_attention(seen, network, layer)
        first, heads = torch.autograd.grad(answer.parts[:, 1, 0], [leaf, mixed], adjoint)
    shape = (len(adjoint), *stream.shape)
    before = stream.value.new_zeros(len(adjoint) + 1, *stream.shape)
    if zeroth is not None:
        before[:-1] += zeroth.reshape(shape)
    before[1:] += first.reshape(shape)
    return before, heads[:, 1, 0]


def _one_attention(seen: list[Tensor], network: Network, layer: int) -> Tensor:
    if len(seen) != 1:
        raise RefusalError(
            f"Block {layer} of {network.name} attends {len(seen)} times: values of heads need one attention a block."
        )
    return seen[0]
