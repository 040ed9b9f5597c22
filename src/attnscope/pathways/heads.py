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
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import pulled_through
from attnscope.pathways.targets import Functional, pulled_back_through_tail, seen_by


@dataclass(frozen=True)
class HeadTable:
    """`contributions[l, h, k]` is c_k(l, h); `lengths[k]` the target summed over all paths of length k, which
    `sources[s, k]` splits by where they begin, at the input or at a constant. `stream` is what leaves the last block,
    sorted by length, and `constant` what constants behind it add to length zero."""

    contributions: Float[Tensor, "layer head length"]
    lengths: Float[Tensor, " length"]
    sources: Float[Tensor, "2 length"]
    constant: float
    stream: Graded

    @property
    def shapley(self) -> Float[Tensor, "layer head"]:
        k = torch.arange(self.contributions.shape[2], device=self.contributions.device).clamp_min(1)
        return (self.contributions / k).sum(-1)

    @property
    def total(self) -> float:
        return float(self.lengths.sum())


@torch.no_grad()
def head_table(network: Network, target: Functional, advance: Advance = silent) -> HeadTable:
    """The exact head x length table of `target`, by one graded pass forward and one backward.

    Sources are not kept apart on the way forward, which would be twice the work: what arrives back at the input meets
    the stream that enters, and what passes a constant meets that.
    """
    network = seen_by(target, network)
    stream, forward = _forward(network)
    last, constant = pulled_back_through_tail(network, target)
    lengths = torch.einsum("k...,...->k", stream.parts[0, :, 0], last)
    lengths[0] += constant
    sources = lengths.new_zeros(2, len(lengths))
    sources[1, 0] = constant
    adjoint = Sums(last[None, None, None])
    rows = []
    for layer in reversed(range(network.layers)):
        pulled = pulled_through(network, layer, adjoint, "attention", heads=True)
        if pulled.constants is not None:
            sources[1, : pulled.constants.ends[0]] += pulled.constants.dense[0, :, 0]
        heads = one_attention(list(pulled.kept), network, layer)
        assert heads is not None, "an attention whose output goes nowhere"
        after = heads_apart(heads.dense[0, :, 0], network)  # [b, batch, head, token, channel]
        rows.append(_collected(torch.einsum("anhtc,bnhtc->hab", forward.pop(), after), network.layers + 1))
        adjoint = _nothing_before(network, layer) if pulled.before is None else pulled.before
        advance("heads", network.layers - layer, network.layers)
    heads_of_blocks = sorted({len(row) for row in rows})
    if len(heads_of_blocks) > 1:
        raise RefusalError(
            f"Blocks of {network.name} have {' and '.join(map(str, heads_of_blocks))} heads, and a table of heads "
            "needs equally many in each: choose another model or stack."
        )
    sources[0, : adjoint.ends[0]] = torch.einsum("k...,...->k", adjoint.dense[0, :, 0], network.streams[0])
    return HeadTable(torch.stack(rows[::-1]), lengths, sources, constant, stream)


def _forward(network: Network) -> tuple[Graded, list[Float[Tensor, "before batch head token channel"]]]:
    """What leaves the last block by length, and what every head of each block adds to every length on the way: its
    mixed values A_h Y^(a) V_h, before the output projection."""
    stream = network.entering("attention", sources=False)
    mixed_parts = []
    for layer in range(network.layers):
        seen: list[Sums] = []

        def keep(mixed: Graded, pattern: Tensor, seen: list[Sums] = seen) -> None:
            seen.append(mixed.sums)

        with watching(keep):
            stream = network.block(layer, stream)
        # Sums leave out lengths that have no path: from one edge on, so that the place says how many were before.
        mixed = one_attention(seen, network, layer)
        mixed_parts.append(heads_apart(mixed.within((1, 0), mixed.ends)[0, :, 0], network))
    return stream, mixed_parts


def _nothing_before(network: Network, layer: int) -> Sums:
    return Sums(torch.zeros_like(network.streams[layer])[None, None, None])


def _collected(pairs: Float[Tensor, "head before after"], lengths: int) -> Float[Tensor, "head length"]:
    """Sum pairs (a, b) of equal a + 1 + b."""
    collected = pairs.new_zeros(pairs.shape[0], lengths)
    for a in range(pairs.shape[1]):
        for b in range(pairs.shape[2]):
            if a + 1 + b < lengths:
                collected[:, a + 1 + b] += pairs[:, a, b]
    return collected
