"""Replace outputs of heads at one input, and run everything after them again: many replacements in one batch.

    heads = HeadOutputs.of(model, sites, network, numbers)           one run of the model: streams, outputs of heads
    left = heads.replaced([{(0, 3): output}, {(0, 3): a, (2, 1): b}])   the last stream of two changed copies
    heads.replaced_partly([...])                                     the same, with norms and gates frozen

The output of a head is its slice of the input of the output projection. A copy joins the batch at the first block in
which it differs, so that blocks before it are not run again. Nothing is frozen in `replaced`: patterns, norms and gates
respond. The model is restored afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.pathways.graded import Graded
from attnscope.pathways.network import BlockCache, Network
from attnscope.pathways.responding import responding
from attnscope.pathways.sums import Sums

Place = tuple[int, int]  # block, head
Output = Float[Tensor, "token channel"]
Replacement = Mapping[Place, Output]
AT_ONCE, TOKENS_AT_ONCE = 32, 8192  # copies that run together, and their tokens
CLOSE = {torch.float64: 1e-4, torch.float32: 1e-3}  # norms of many models compute in float32


def close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    allowed = CLOSE.get(other.dtype, 1e-3) * other.abs().max()
    return one.shape == other.shape and bool((one - other).abs().max() <= allowed)


class EnoughError(Exception):
    """Raised in a hook to stop a forward pass whose rest is not needed."""


def output_projection(model: nn.Module, site: Site) -> nn.Module:
    assert site.projections.output is not None
    return model.get_submodule(site.projections.output.parameter.rpartition(".")[0])


def by_head(mixed: Tensor, site: Site) -> Float[Tensor, "*rows token head channel"]:
    """Return the input of the output projection, split by head; refuse if it does not separate heads."""
    if mixed.shape[-1] != site.heads * site.value_dim or mixed.ndim < 3:
        raise RefusalError(
            f"The input of the output projection of block {site.layer} does not separate heads, so none can be taken "
            "out: leave effects out (`effects=None`, `--no-effects`)."
        )
    return mixed.reshape(*mixed.shape[:-1], site.heads, site.value_dim)


@contextmanager
def projecting(model: nn.Module, site: Site, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Pass the input of the output projection through `change` inside this context; None leaves it as it is."""
    called: list[bool] = []

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called.append(True)
        other = change(args[0]) if args and isinstance(args[0], Tensor) else None
        return None if other is None else ((other, *args[1:]), kwargs)

    with Restoring() as changes:
        changes.before(output_projection(model, site), hook)
        yield
    if not called:
        raise RefusalError(
            f"The output projection of block {site.layer} is not called as a module, so no head can be taken out: "
            "leave effects out (`effects=None`, `--no-effects`)."
        )


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """What a model computes at one input: outputs of heads, and the stream before every block and after the last.

    `gradients[l]` are the derivatives of some numbers with respect to the outputs of the heads of block l.
    """

    model: nn.Module
    sites: Mapping[int, Site]
    network: Network
    streams: tuple[Float[Tensor, "1 token width"], ...]
    outputs: Mapping[int, Float[Tensor, "token head channel"]]
    gradients: Mapping[int, Float[Tensor, "number token head channel"]]
    together: list[bool] = field(default_factory=list)  # whether copies may share a batch; empty until tried

    @classmethod
    def of(
        cls,
        model: nn.Module,
        sites: Mapping[int, Site],
        network: Network,
        numbers: Callable[[Tensor], Sequence[Tensor]],
    ) -> HeadOutputs:
        """Run the model block by block, and differentiate `numbers(last stream)`."""
        leaves: dict[int, Tensor] = {}
        streams = [network.streams[0]]
        with torch.enable_grad():
            stream = network.streams[0].detach()
            for layer in range(network.layers):

                def keep(mixed: Tensor, layer: int = layer) -> Tensor:
                    by_head(mixed, sites[layer])
                    if mixed.shape[:-1] != streams[0].shape[:-1]:
                        raise RefusalError(
                            f"Block {layer} of {network.name} has another order of tokens and sequences in its output "
                            "projection, so no head can be taken out: leave effects out (`effects=None`, "
                            "`--no-effects`)."
                        )
                    leaves[layer] = mixed.detach().requires_grad_() if not mixed.requires_grad else mixed
                    return leaves[layer]

                if layer in sites:
                    with projecting(model, sites[layer], keep):
                        stream = network.blocks[layer](stream)
                else:
                    stream = network.blocks[layer](stream)
                streams.append(stream.detach())
            found = [
                torch.autograd.grad(number, list(leaves.values()), materialize_grads=True, retain_graph=True)
                for number in numbers(stream)
            ]
        grads = {at: torch.cat(every) for at, every in zip(leaves, zip(*found, strict=True), strict=True)}
        return cls(
            model,
            sites,
            network,
            tuple(streams),
            {at: by_head(leaf.detach(), sites[at])[0] for at, leaf in leaves.items()},
            {at: by_head(grad, sites[at]) for at, grad in grads.items()},
        )

    @torch.no_grad()
    def replaced(self, copies: Sequence[Replacement]) -> Float[Tensor, "copy token width"]:
        """Return the last stream of every copy: its heads are replaced, and everything after them responds."""
        return torch.cat([self._replaced(some) for some in self._some(copies)])

    def _some(self, copies: Sequence[Replacement]) -> Iterator[Sequence[Replacement]]:
        """Yield as many copies as run together."""
        many = max(1, min(AT_ONCE, TOKENS_AT_ONCE // self.streams[0].shape[1]))
        return (copies[start : start + many] for start in range(0, len(copies), many))

    def _replaced(self, copies: Sequence[Replacement]) -> Float[Tensor, "copy token width"]:
        if not self.together:
            return self._tried(copies)
        return self._in_one_batch(copies) if self.together[0] else self._one_by_one(copies)

    def _tried(self, copies: Sequence[Replacement]) -> Float[Tensor, "copy token width"]:
        """Run the first batch with one more copy that is not changed, and find out if it is the model's own."""
        own = self.streams[-1]
        try:
            left = self._in_one_batch((*copies, {}))
            self.together.append(close(left[-1:], own))
        except (RuntimeError, ValueError, IndexError, TypeError):
            self.together.append(False)
        return left[:-1] if self.together[0] else self._one_by_one(copies)

    def _one_by_one(self, copies: Sequence[Replacement]) -> Float[Tensor, "copy token width"]:
        return torch.cat([self._in_one_batch([copy]) for copy in copies])

    def _in_one_batch(self, copies: Sequence[Replacement]) -> Float[Tensor, "copy token width"]:
        order, first = _by_first_block(copies)
        stream = self.streams[0][:0]
        for layer in range(self.network.layers):
            new = sum(block == layer for block in first)
            stream = torch.cat([stream, self.streams[layer].expand(new, -1, -1)])
            if not len(stream):
                continue
            changed = _at_block(layer, [copies[number] for number in order[: len(stream)]])
            if not changed:
                stream = self.network.blocks[layer](stream)
                continue
            site = self.sites[layer]

            def change(mixed: Tensor, changed: _Changed = changed, site: Site = site) -> Tensor:
                apart = by_head(mixed, site).clone()
                for row, head, output in changed:
                    apart[row, :, head] = output
                return apart.flatten(-2)

            with projecting(self.model, site, change):
                stream = self.network.blocks[layer](stream)
        return stream[_inverse(order)]

    @torch.no_grad()
    def replaced_partly(self, copies: Sequence[Replacement]) -> Float[Tensor, "copy token width"]:
        """Return by how much the last stream of every copy differs if norms and gates are frozen and patterns respond.

        Refuse a model whose patterns cannot be recomputed from queries and keys.
        """
        # Other functions are followed here than in the frozen network, so its stored values do not fit.
        network = replace(self.network, caches=defaultdict(BlockCache))
        return torch.cat([self._partly(network, some) for some in self._some(copies)])

    def _partly(self, network: Network, copies: Sequence[Replacement]) -> Float[Tensor, "copy token width"]:
        order, first = _by_first_block(copies)
        parts = network.streams[0][:0, None, None, None]
        for layer in range(network.layers):
            new = sum(block == layer for block in first)
            nothing = torch.zeros_like(network.streams[layer])[None, None, None].expand(new, *[-1] * 5)
            parts = torch.cat([parts, nothing])
            if not len(parts):
                continue
            changed = _at_block(layer, [copies[number] for number in order[: len(parts)]])
            stream = Graded.of(network.streams[layer], parts, None, "none")
            with responding() as responses:
                if changed:
                    with projecting(self.model, self.sites[layer], self._differing(layer, changed)):
                        stream = network.block(layer, stream)
                else:
                    stream = network.block(layer, stream)
            if layer in self.sites and not responses.patterns:
                raise RefusalError(
                    f"The patterns of block {layer} of {network.name} cannot be recomputed from queries and keys, so "
                    "effects are not split: read the whole effects, or choose a model with softmax attention."
                )
            parts = stream.sums.parts
        return parts[_inverse(order), 0, 0, 0]

    def _differing(self, layer: int, changed: _Changed) -> Callable[[Tensor], Tensor]:
        """Return a change of the followed input of the output projection: a replaced head differs by a constant."""
        site = self.sites[layer]

        def change(mixed: Tensor) -> Tensor:
            assert isinstance(mixed, Graded)
            sums, own = mixed.deferred, by_head(mixed.value, site)[0]

            def make() -> Sums:
                before = sums()
                assert isinstance(before, Sums)
                apart = by_head(before.parts, site).clone()
                for row, head, output in changed:
                    apart[row, 0, 0, 0, :, head] = output - own[:, head]
                return Sums(apart.flatten(-2), before.first)

            return mixed.made(mixed.value, make)

        return change


_Changed = list[tuple[int, int, Tensor]]  # row of the batch, head, output


def _by_first_block(copies: Sequence[Replacement]) -> tuple[list[int], list[int]]:
    """Return the copies in the order in which they join the batch, and the block at which each does."""
    first = [min((block for block, _ in copy), default=0) for copy in copies]
    order = sorted(range(len(copies)), key=lambda number: (first[number], number))
    return order, [first[number] for number in order]


def _at_block(layer: int, copies: Sequence[Replacement]) -> _Changed:
    return [(row, h, output) for row, copy in enumerate(copies) for (b, h), output in copy.items() if b == layer]


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
