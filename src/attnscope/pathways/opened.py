"""A block opened at its heads: adjoints carried to the output of each head, and from one head on.

A path takes, at every block, the skip (choice 0) or head h (choice h + 1). With m what follows attention in the block,
O the output projection, V the values and A_h the pattern, the transposes of these choices begin alike,

    skip     B_0^T a                       head h     V_h^T A_h^T (O_h^T m^T a),

so that what costs most, m^T a, is done once for all of them, and what is left only for the heads that are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.edges import heads_apart, one_attention
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.network import Network
from attnscope.pathways.sums import LEADING, Sums
from attnscope.pathways.tape import Taped, UnrecordedError

Adjoints = Float[Tensor, " many *shape"]
AtHeads = Float[Tensor, "many batch head token channel"]
AT_ONCE = 8  # adjoints that go through together: more would leave the processor's own memory and be slower for it


@dataclass(frozen=True, eq=False)
class Halfway:
    """Adjoints before a block along its skip (None: it has none), and at the output of its heads."""

    skip: Adjoints | None
    heads: AtHeads


@dataclass(frozen=True, eq=False)
class Opened:
    """Block `layer`. Where a rule cannot be written on a tape, the block is run forward and differentiated."""

    network: Network
    layer: int

    def halfway(self, adjoints: Adjoints) -> Halfway:
        found = [self._halfway(some) for some in torch.split(adjoints, AT_ONCE)]
        skips = [one.skip for one in found if one.skip is not None]
        return Halfway(torch.cat(skips) if skips else None, torch.cat([one.heads for one in found]))

    def onwards(self, halfway: Halfway, places: list[int], choices: list[int]) -> Adjoints:
        """Adjoints before the block, of the suffixes at `places` with a choice each."""
        shape = self.network.streams[self.layer].shape
        made = halfway.heads.new_empty(len(places), *shape)
        for start in range(0, len(places), AT_ONCE):
            some = list(zip(places, choices, strict=True))[start : start + AT_ONCE]
            skips = [i for i, (_, choice) in enumerate(some, start) if choice == 0]
            if skips:
                assert halfway.skip is not None
                made[skips] = halfway.skip[[places[i] for i in skips]]
            heads = [i for i, (_, choice) in enumerate(some, start) if choice > 0]
            if heads:
                alone = halfway.heads.new_zeros(len(heads), *halfway.heads.shape[1:])
                for row, i in enumerate(heads):
                    alone[row, :, choices[i] - 1] = halfway.heads[places[i], :, choices[i] - 1]
                made[heads] = self._from_heads(alone)
        return made

    @cached_property
    def _taped(self) -> Taped | None:
        try:
            taped = Taped.of(self.network, self.layer, "attention")
        except UnrecordedError:
            return None
        one_attention(list(taped.heads), self.network, self.layer)
        return taped

    def _halfway(self, adjoints: Adjoints) -> Halfway:
        if self._taped is None:
            return self._halfway_slowly(adjoints)
        pulled = self._taped.pulled_to_heads(Sums(adjoints[:, None, None]))
        (at_heads,) = pulled.kept
        assert at_heads is not None, "an attention whose output goes nowhere"
        skip = None if pulled.before is None else pulled.before.parts[:, 0, 0]
        return Halfway(skip, heads_apart(at_heads.parts[:, 0, 0], self.network))

    def _from_heads(self, at_heads: AtHeads) -> Adjoints:
        if self._taped is None:
            return self._from_heads_slowly(at_heads)
        inner = at_heads.reshape(len(at_heads), 1, 1, *self._taped.heads[0].shape)
        before = self._taped.pulled_from_heads(Sums(inner))
        assert before is not None, "an attention that the stream does not enter"
        return before.parts[:, 0, 0]

    @torch.enable_grad()
    def _halfway_slowly(self, adjoints: Adjoints) -> Halfway:
        leaf, mixed, answer = self._run(len(adjoints))
        skip = None
        if answer.sums.first[0] == 0:  # not where the skip is cut
            (before,) = torch.autograd.grad(answer.parts[:, 0, 0], leaf, adjoints, retain_graph=True)
            skip = before[:, 0, 0]
        (pulled,) = torch.autograd.grad(answer.parts[:, 1, 0], mixed, adjoints)
        return Halfway(skip, heads_apart(pulled[:, 0, 0], self.network))

    @torch.enable_grad()
    def _from_heads_slowly(self, at_heads: AtHeads) -> Adjoints:
        leaf, mixed, _ = self._run(len(at_heads))
        (before,) = torch.autograd.grad(mixed, leaf, at_heads.reshape(mixed.shape))
        return before[:, 0, 0]

    def _run(self, many: int) -> tuple[Tensor, Tensor, Graded]:
        seen: list[Sums] = []

        def keep(mixed: Graded, pattern: Tensor) -> None:
            seen.append(mixed.sums)

        stream = self.network.streams[self.layer]
        with torch.enable_grad(), watching(keep):
            leaf = stream.new_zeros(many, *(1,) * (LEADING - 1), *stream.shape).requires_grad_()
            answer = self.network.block(self.layer, Graded.of(stream, leaf, None, "attention"))
        return leaf, one_attention(seen, self.network, self.layer).parts, answer
