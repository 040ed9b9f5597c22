"""The value of every head: a head x length table and exact Shapley values, for any linear target of the output.

Let T be a linear functional of the output (a logit, a difference of logits). T of the frozen network is a sum over
paths; each path uses a set of heads. Write c_k(l, h) for the sum over all paths of length k that go through head h of
block l.

Table. With Y_l^(a) the sum of paths of length a that reach block l, and G_l^(b) the adjoint of T along all
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
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.network import Edges, Network, only_attention, split_heads
from attnscope.pathways.sums import LEADING, Sums
from attnscope.pathways.tape import Taped, UnrecordedError, pulled_through
from attnscope.pathways.targets import Functional, network_read_by, pulled_back_through_tail

Adjoints = Float[Tensor, " many *shape"]
HeadAdjoints = Float[Tensor, "many batch head token channel"]
AT_ONCE = 8  # adjoints carried together; more do not fit into the processor's cache


@dataclass(frozen=True, eq=False)
class AtHeads:
    """Adjoints before a block along its skip (None if it has no skip), and at the output of its heads."""

    skip: Adjoints | None
    heads: HeadAdjoints


@dataclass(frozen=True, eq=False)
class BlockTranspose:
    """Carry adjoints through the block with index `layer` in two steps: to the output of each head, then to its input.

    A path takes, at every block, the skip (choice 0) or head h (choice h + 1). With m the part of the block after
    attention, O the output projection, V the values and A_h the pattern, the transposes of these choices begin alike,

        skip     B_0^T a                       head h     V_h^T A_h^T (O_h^T m^T a),

    so the most expensive step, m^T a, is done once for all of them, and the rest only for the heads that are needed.
    If a rule cannot be recorded on a tape, the block is run forward and differentiated.
    """

    network: Network
    layer: int

    def to_heads(self, adjoints: Adjoints) -> AtHeads:
        found = [self._to_heads(some) for some in torch.split(adjoints, AT_ONCE)]
        skips = [some.skip for some in found if some.skip is not None]
        return AtHeads(torch.cat(skips) if skips else None, torch.cat([some.heads for some in found]))

    def to_input(self, at_heads: AtHeads, rows: list[int], choices: list[int]) -> Adjoints:
        """Return the adjoints before the block for the suffixes in `rows`, each with its choice."""
        shape = self.network.streams[self.layer].shape
        made = at_heads.heads.new_empty(len(rows), *shape)
        for start in range(0, len(rows), AT_ONCE):
            some = range(start, min(start + AT_ONCE, len(rows)))
            skips = [i for i in some if choices[i] == 0]
            if skips:
                assert at_heads.skip is not None
                made[skips] = at_heads.skip[[rows[i] for i in skips]]
            heads = [i for i in some if choices[i] > 0]
            if heads:
                alone = at_heads.heads.new_zeros(len(heads), *at_heads.heads.shape[1:])
                for row, i in enumerate(heads):
                    alone[row, :, choices[i] - 1] = at_heads.heads[rows[i], :, choices[i] - 1]
                made[heads] = self._from_heads(alone)
        return made

    @cached_property
    def _taped(self) -> Taped | None:
        try:
            taped = Taped.of(self.network, self.layer, "attention")
        except UnrecordedError:
            return None
        only_attention(list(taped.heads), self.network, self.layer)
        return taped

    def _to_heads(self, adjoints: Adjoints) -> AtHeads:
        if self._taped is None:
            return self._to_heads_slowly(adjoints)
        pulled = self._taped.pulled_to_heads(Sums(adjoints[:, None, None]))
        (at_heads,) = pulled.kept
        assert at_heads is not None, "an attention whose output goes nowhere"
        skip = None if pulled.before is None else pulled.before.parts[:, 0, 0]
        return AtHeads(skip, split_heads(at_heads.parts[:, 0, 0], self.network))

    def _from_heads(self, at_heads: HeadAdjoints) -> Adjoints:
        if self._taped is None:
            leaf, mixed, _ = self._run(len(at_heads))
            return torch.autograd.grad(mixed, leaf, at_heads.reshape(mixed.shape))[0][:, 0, 0]
        inner = at_heads.reshape(len(at_heads), 1, 1, *self._taped.heads[0].shape)
        before = self._taped.pulled_from_heads(Sums(inner))
        assert before is not None, "an attention that the stream does not enter"
        return before.parts[:, 0, 0]

    @torch.enable_grad()
    def _to_heads_slowly(self, adjoints: Adjoints) -> AtHeads:
        leaf, mixed, answer = self._run(len(adjoints))
        skip = None
        if answer.sums.first[0] == 0:  # false if the skip is cut
            (before,) = torch.autograd.grad(answer.parts[:, 0, 0], leaf, adjoints, retain_graph=True)
            skip = before[:, 0, 0]
        (pulled,) = torch.autograd.grad(answer.parts[:, 1, 0], mixed, adjoints)
        return AtHeads(skip, split_heads(pulled[:, 0, 0], self.network))

    def _run(self, many: int) -> tuple[Tensor, Tensor, Graded]:
        """Run the block on zeros. Return the zeros, the output of the attention and the output of the block."""
        seen: list[Sums] = []

        def keep(mixed: Graded, pattern: Tensor) -> None:
            seen.append(mixed.sums)

        stream = self.network.streams[self.layer]
        with torch.enable_grad(), watching(keep):
            leaf = stream.new_zeros(many, *(1,) * (LEADING - 1), *stream.shape).requires_grad_()
            answer = self.network.block(self.layer, Graded.of(stream, leaf, None, "attention"))
        return leaf, only_attention(seen, self.network, self.layer).parts, answer


@dataclass(frozen=True)
class HeadTable:
    """The contributions of all heads, by length of path.

    `contributions[l, h, k]` is c_k(l, h). `lengths[k]` is the target summed over all paths of length k; `sources[s, k]`
    splits it by where paths begin, at the input or at a constant. `stream` is the output of the last block, sorted by
    length. `constant` is the contribution of constants after the last block, of length zero. `last` is the adjoint of
    the target at the last stream, and `adjoints[l]` at the outputs of the heads of block l, along all continuations;
    `outputs[l]` are these outputs. `edges` are the edges of every block.
    """

    contributions: Float[Tensor, "layer head length"]
    lengths: Float[Tensor, " length"]
    sources: Float[Tensor, "2 length"]
    constant: float
    stream: Graded
    last: Float[Tensor, "batch token width"]
    adjoints: tuple[Float[Tensor, "batch head token channel"], ...]
    outputs: tuple[Float[Tensor, "batch head token channel"], ...]
    edges: tuple[Edges, ...]

    @property
    def shapley(self) -> Float[Tensor, "layer head"]:
        k = torch.arange(self.contributions.shape[2], device=self.contributions.device).clamp_min(1)
        return (self.contributions / k).sum(-1)

    @property
    def total(self) -> float:
        return float(self.lengths.sum())


@torch.no_grad()
def head_table(network: Network, target: Functional, advance: Advance = silent) -> HeadTable:
    """Return the exact head x length table of `target`, by one graded pass forward and one backward.

    The forward pass does not keep sources apart, which would double its work. Adjoints that arrive at the input are
    multiplied by the stream that enters, and adjoints at a constant by the constant.
    """
    network = network_read_by(target, network)
    stream, forward, outputs, mlps = _forward(network)
    last, constant = pulled_back_through_tail(network, target)
    lengths = torch.einsum("k...,...->k", stream.parts[0, :, 0], last)
    lengths[0] += constant
    sources = lengths.new_zeros(2, len(lengths))
    sources[1, 0] = constant
    adjoint = Sums(last[None, None, None])
    rows, adjoints, skips = [], [], []
    for layer in reversed(range(network.layers)):
        pulled = pulled_through(network, layer, adjoint, "attention", heads=True)
        if pulled.constants is not None:
            sources[1, : pulled.constants.stop[0]] += pulled.constants.dense[0, :, 0]
        heads = only_attention(list(pulled.kept), network, layer)
        assert heads is not None, "an attention whose output goes nowhere"
        after = split_heads(heads.dense[0, :, 0], network)  # [b, batch, head, token, channel]
        adjoints.append(after.sum(0))
        rows.append(_collected(torch.einsum("anhtc,bnhtc->hab", forward.pop(), after), network.layers + 1))
        nothing = Sums(torch.zeros_like(network.streams[layer])[None, None, None])
        # `Sums` omits lengths without a path: with a skip, the shortest way to the input has as many edges as before.
        skips.append(pulled.before is not None and pulled.before.first[0] == adjoint.first[0])
        adjoint = nothing if pulled.before is None else pulled.before
        advance("heads", network.layers - layer, network.layers)
    heads_of_blocks = sorted({len(row) for row in rows})
    if len(heads_of_blocks) > 1:
        raise RefusalError(
            f"Blocks of {network.name} have {' and '.join(map(str, heads_of_blocks))} heads, and a table of heads "
            "needs equally many in each: choose another model or stack."
        )
    sources[0, : adjoint.stop[0]] = torch.einsum("k...,...->k", adjoint.dense[0, :, 0], network.streams[0])
    blocks = tuple(
        Edges(len(row), *one) for row, one in zip(rows[::-1], zip(mlps, skips[::-1], strict=True), strict=True)
    )
    return HeadTable(
        torch.stack(rows[::-1]), lengths, sources, constant, stream, last, tuple(adjoints[::-1]), outputs, blocks
    )


def _forward(
    network: Network,
) -> tuple[
    Graded,
    list[Float[Tensor, "before batch head token channel"]],
    tuple[Float[Tensor, "batch head token channel"], ...],
    list[int],
]:
    """Return the output of the last block by length, for every block and head its mixed values A_h Y^(a) V_h before the
    output projection, and their sums over a, and how many MLPs every block has.
    """
    stream = network.entering("attention", sources=False)
    mixed_parts, outputs = [], []
    mlps = [0] * network.layers
    for layer in range(network.layers):
        seen: list[Sums] = []

        def count(activated: Graded, gate: Tensor, layer: int = layer) -> None:
            mlps[layer] += 1

        def keep(mixed: Graded, pattern: Tensor, seen: list[Sums] = seen) -> None:
            seen.append(mixed.sums)
            outputs.append(split_heads(mixed.value[None], network)[0])

        with watching(keep), watching(count, "mlp"):
            stream = network.block(layer, stream)
        # `Sums` omits lengths without a path. Start at one edge: the index then counts the edges before this one.
        mixed = only_attention(seen, network, layer)
        mixed_parts.append(split_heads(mixed.within((1, 0), mixed.stop)[0, :, 0], network))
    return stream, mixed_parts, tuple(outputs), mlps


def _collected(pairs: Float[Tensor, "head before after"], lengths: int) -> Float[Tensor, "head length"]:
    """Sum all pairs (a, b) with the same length a + 1 + b."""
    collected = pairs.new_zeros(pairs.shape[0], lengths)
    for a in range(pairs.shape[1]):
        for b in range(pairs.shape[2]):
            if a + 1 + b < lengths:
                collected[:, a + 1 + b] += pairs[:, a, b]
    return collected
