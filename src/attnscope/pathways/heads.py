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

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.pathways.edges import heads_apart, one_attention
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.lengths import streams_by_length
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_through
from attnscope.pathways.targets import Functional, pulled_back_through_tail, seen_by


@dataclass(frozen=True)
class HeadTable:
    """`contributions[l, h, k]` is c_k(l, h); `lengths[k]` the target summed over all paths of length k."""

    contributions: Float[Tensor, "layer head length"]
    lengths: Float[Tensor, " length"]

    @property
    def shapley(self) -> Float[Tensor, "layer head"]:
        k = torch.arange(self.contributions.shape[2], device=self.contributions.device).clamp_min(1)
        return (self.contributions / k).sum(-1)

    @property
    def total(self) -> float:
        return float(self.lengths.sum())


def head_table(network: Network, target: Functional, advance: Advance = silent) -> HeadTable:
    """The exact head x length table of `target`, by one graded pass forward and one backward."""
    network = seen_by(target, network)
    streams = list(streams_by_length(network, sources=False))
    last, constant = pulled_back_through_tail(network, target)
    lengths = torch.einsum("k...,...->k", streams[-1].parts[0, :, 0], last)
    lengths[0] += constant
    adjoint = Sums(last[None, None, None])
    rows = []
    for layer in reversed(range(network.layers)):
        forward = _mixed_parts(network, layer, streams[layer])  # [a, batch, head, token, channel]
        adjoint, pulled = _pulled_back(network, layer, adjoint)  # [b, batch, head, token, channel]
        rows.append(_collected(torch.einsum("anhtc,bnhtc->hab", forward, pulled), network.layers + 1))
        streams.pop()
        advance("heads", network.layers - layer, network.layers)
    heads = sorted({len(row) for row in rows})
    if len(heads) > 1:
        raise RefusalError(
            f"Blocks of {network.name} have {' and '.join(map(str, heads))} heads, and a table of heads needs equally "
            "many in each: choose another model or stack."
        )
    return HeadTable(torch.stack(rows[::-1]), lengths)


def _collected(pairs: Float[Tensor, "head before after"], lengths: int) -> Float[Tensor, "head length"]:
    """Sum pairs (a, b) of equal a + 1 + b."""
    collected = pairs.new_zeros(pairs.shape[0], lengths)
    for a in range(pairs.shape[1]):
        for b in range(pairs.shape[2]):
            if a + 1 + b < lengths:
                collected[:, a + 1 + b] += pairs[:, a, b]
    return collected


@torch.no_grad()
def _mixed_parts(network: Network, layer: int, stream: Graded) -> Float[Tensor, "before batch head token channel"]:
    """What every head adds to every length: its mixed values A_h Y^(a) V_h, before the output projection."""
    seen: list[Sums] = []

    def keep(mixed: Graded, pattern: Tensor) -> None:
        seen.append(mixed.sums)

    with watching(keep):
        network.block(layer, stream)
    # Sums leave out lengths that have no path: from zero edges on, so that the place says how many there were before.
    return heads_apart(one_attention(seen, network, layer).dense[0, 1:, 0], network)


def _pulled_back(
    network: Network, layer: int, adjoint: Sums
) -> tuple[Sums, Float[Tensor, "after batch head token channel"]]:
    """The adjoint before block `layer`, and at its heads, by attention edges still to come."""
    pulled = pulled_through(network, layer, adjoint, "attention", heads=True)
    heads = one_attention(list(pulled.kept), network, layer)
    assert heads is not None, "an attention whose output goes nowhere"
    nothing = Sums(torch.zeros_like(network.streams[layer])[None, None, None])
    return nothing if pulled.before is None else pulled.before, heads_apart(heads.dense[0, :, 0], network)
