"""The search for the largest paths, every suffix pulled back through every choice: slow, the reference for tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.network import Network, only_attention, scale_heads, split_heads
from attnscope.pathways.sums import Sums
from attnscope.pathways.targets import Functional, network_read_by, pulled_back_through_tail
from attnscope.pathways.top_paths import TopPath, TopPaths


@torch.no_grad()
def signed_streams(network: Network, draws: int, generator: torch.Generator) -> list[Tensor]:
    """Sums of paths with random signs, [draw, *shape]: before every block, and after the last."""

    def signs(heads: int) -> Tensor:
        coins = torch.randint(0, 2, (draws, heads), generator=generator)
        return (2 * coins - 1).to(network.streams[0])

    parts = network.streams[0].expand(draws, 1, 1, *network.streams[0].shape)
    streams = [parts[:, 0, 0]]
    with watching(scale_heads(signs, network)):
        for layer in range(network.layers):
            parts = network.block(layer, Graded.of(network.streams[layer], parts, None, "none")).parts
            streams.append(parts[:, 0, 0])
    return streams


@dataclass(frozen=True)
class _Beam:
    """Suffixes: their choices (0 the skip, h + 1 head h), adjoints, and roots of the energy of their completions."""

    choices: tuple[tuple[int, ...], ...]
    adjoints: Float[Tensor, " suffix *shape"]
    roots: Float[Tensor, " suffix"]

    def and_best_of(self, other: _Beam, width: int) -> tuple[_Beam, float]:
        """Return the best of both, and the largest root that is dropped."""
        roots = torch.cat([self.roots, other.roots])
        order = roots.argsort(descending=True, stable=True)
        kept = order[:width]
        choices = (*self.choices, *other.choices)
        adjoints = torch.cat([self.adjoints, other.adjoints])
        best = _Beam(tuple(choices[i] for i in kept.tolist()), adjoints[kept], roots[kept])
        return best, float(roots[order[width]]) if len(order) > width else 0.0


def slow_top_paths(
    network: Network, target: Functional, count: int = 10, width: int = 32, draws: int = 16, seed: int = 0
) -> TopPaths:
    """Return the `count` paths from the input with the largest contributions of either sign, largest first."""
    network = network_read_by(target, network)
    last, _ = pulled_back_through_tail(network, target)
    streams = signed_streams(network, draws, torch.Generator().manual_seed(seed))
    beam = _Beam(((),), last[None], last.new_zeros(1))
    dropped = 0.0  # the largest root of a suffix that was dropped before the input
    for layer in reversed(range(network.layers)):
        signed = network.streams[0][None] if layer == 0 else streams[layer]  # at the input there is one completion
        grown: _Beam | None = None
        for more in _expanded(network, layer, beam, signed):
            if grown is None:
                grown = more
                continue
            grown, root = grown.and_best_of(more, width)
            dropped = max(dropped, root if layer > 0 else 0.0)
        assert grown is not None
        beam = grown
    best = tuple(_described(network, beam, count))
    least = abs(best[-1].contribution) if len(best) == count else 0.0  # fewer than `count` if there are no others
    return TopPaths(best, dropped == 0.0, max(dropped, least), width)


def _expanded(network: Network, layer: int, beam: _Beam, signed: Float[Tensor, " draw *shape"]) -> Iterator[_Beam]:
    """Return all suffixes, each preceded by the skip of block `layer`, by its first head, by its second, ..."""
    seen: list[Sums] = []

    def keep(mixed: Graded, pattern: Tensor) -> None:
        seen.append(mixed.sums)

    def scored(choice: int, adjoints: Tensor) -> _Beam:
        roots = torch.einsum("w...,d...->wd", adjoints, signed).square().mean(1).sqrt()
        return _Beam(tuple((choice, *rest) for rest in beam.choices), adjoints, roots)

    stream = network.streams[layer]
    with torch.enable_grad(), watching(keep):
        leaf = stream.new_zeros(len(beam.choices), 1, 1, *stream.shape).requires_grad_()
        answer = network.block(layer, Graded.of(stream, leaf, None, "attention"))
    mixed = only_attention(seen, network, layer).parts
    if answer.sums.first[0] == 0:  # not where the skip is cut
        (skip,) = torch.autograd.grad(answer.parts[:, 0, 0], leaf, beam.adjoints, retain_graph=True)
        yield scored(0, skip[:, 0, 0])
    (pulled,) = torch.autograd.grad(answer.parts[:, 1, 0], mixed, beam.adjoints, retain_graph=True)
    apart = split_heads(pulled[:, 0, 0], network)
    for head in range(apart.shape[2]):
        alone = torch.zeros_like(apart)
        alone[:, :, head] = apart[:, :, head]
        (before,) = torch.autograd.grad(mixed, leaf, alone.reshape(pulled.shape), retain_graph=True)
        yield scored(head + 1, before[:, 0, 0])


def _described(network: Network, beam: _Beam, count: int) -> Iterator[TopPath]:
    by_token = (beam.adjoints * network.streams[0]).sum(-1)  # [path, batch, token]
    whole = by_token.flatten(1).sum(1)
    for index in whole.abs().argsort(descending=True, stable=True)[:count].tolist():
        sequence, token = divmod(int(by_token[index].abs().argmax()), by_token.shape[2])
        heads = tuple((layer, c - 1) for layer, c in enumerate(beam.choices[index]) if c)
        yield TopPath(heads, float(whole[index]), sequence, token, float(by_token[index, sequence, token]))
