"""How large individual paths are: the sum of squares of all paths of each length, without visiting them.

Give every head of every layer a random sign s = +-1, the skip the sign +1, and a path the product of its signs. Then
E |sum_p s_p path_p|^2 = sum_p |path_p|^2: two different paths part at some layer, where one takes a head that the
other does not, and that head's sign has mean zero and is independent of all others. (A sign on the skip as well would
change all paths by a common factor.) The signed sums follow the recursion for lengths, one pass for every draw.

Where paths of a length cancel, their energy is far above |sum|^2; where they agree, below it by their number.
Paths that begin at constants are not counted: there is one for every bias and continuation, which is no family that
grows with the length alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.edges import multiplied
from attnscope.pathways.graded import Count, Graded, watching
from attnscope.pathways.network import Network
from attnscope.pathways.targets import Functional, pulled_back_through_tail, seen_by


@dataclass(frozen=True)
class Energy:
    """Unbiased estimates by length, with their standard errors over draws. `sums` is |sum of all paths|^2, exactly."""

    energy: Float[Tensor, " length"]
    standard_error: Float[Tensor, " length"]
    sums: Float[Tensor, " length"]
    draws: int


def path_energy(
    network: Network, draws: int = 64, seed: int = 0, target: Functional | None = None, at_once: int = 8
) -> Energy:
    """Energies of the last stream's paths, or of what they contribute to a target."""
    if draws < 2:
        raise RefusalError(f"A standard error needs two draws or more, not {draws}.")
    network = network if target is None else seen_by(target, network)
    adjoint = None if target is None else pulled_back_through_tail(network, target)[0]
    generator = torch.Generator().manual_seed(seed)
    squares = []
    for start in range(0, draws, at_once):
        signed = signed_streams(network, min(at_once, draws - start), generator, "attention")[-1]
        squares.append(_squared(signed, adjoint))
    every = torch.cat(squares)
    whole = network.streams[0].new_ones(1, 1)
    plain = _streams(network, lambda heads: whole.expand(1, heads), 1, "attention")[-1]
    return Energy(every.mean(0), every.std(0) / draws**0.5, _squared(plain, adjoint)[0], draws)


def _squared(streams: Float[Tensor, "draw length *shape"], adjoint: Tensor | None) -> Float[Tensor, "draw length"]:
    if adjoint is not None:
        return torch.einsum("dk...,...->dk", streams, adjoint).square()
    return streams.square().flatten(2).sum(-1)


def signed_streams(
    network: Network, draws: int, generator: torch.Generator, count: Count = "none"
) -> list[Float[Tensor, "draw length *shape"]]:
    """Sums of paths with random signs: before every block, and after the last."""

    def signs(heads: int) -> Tensor:
        # Drawn by the CPU wherever the network is: the same seed then means the same signs.
        coins = torch.randint(0, 2, (draws, heads), generator=generator, device="cpu")
        return (2 * coins - 1).to(network.streams[0])

    return _streams(network, signs, draws, count)


@torch.no_grad()
def _streams(network: Network, factors: Callable[[int], Tensor], draws: int, count: Count) -> list[Tensor]:
    entering = network.streams[0]
    parts = entering.expand(draws, 1, 1, *entering.shape)
    streams = [parts[:, :, 0]]
    with watching(multiplied(factors, network)):
        for layer in range(network.layers):
            parts = network.block(layer, Graded.of(network.streams[layer], parts, None, count)).parts
            streams.append(parts[:, :, 0])
    return streams
