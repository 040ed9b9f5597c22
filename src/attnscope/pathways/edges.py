"""The edges of a network: how many heads and MLPs each block has, and multiplying what passes through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import Graded, Watch, watching
from attnscope.pathways.network import Network
from attnscope.pathways.sums import LEADING, Backwards, split_axis

T = TypeVar("T")


@dataclass(frozen=True)
class Edges:
    """Of one block: heads of its attention (zero: it has none), how many MLPs it has, and whether a path can pass it
    without a head."""

    heads: int
    mlps: int
    skip: bool


@torch.no_grad()
def edges(network: Network) -> tuple[Edges, ...]:
    """What each block passes the stream through, found by running it."""
    return tuple(_edges_of(network, layer) for layer in range(network.layers))


def _edges_of(network: Network, layer: int) -> Edges:
    heads: list[int] = []
    mlps: list[int] = []

    def attention(mixed: Graded, pattern: Tensor) -> None:
        value = mixed.value
        heads.append(value.shape[1] if value.ndim == 4 else value.shape[0] // network.streams[0].shape[0])

    def mlp(activated: Graded, gate: Tensor) -> None:
        mlps.append(1)

    stream = network.streams[layer]
    with watching(attention), watching(mlp, "mlp"):
        through = network.block(layer, Graded.of(stream, stream[None, None, None], None, "attention"))
    if len(heads) > 1:
        one_attention(heads, network, layer)
    return Edges(sum(heads), len(mlps), through.sums.first[0] == 0)


def number_of_paths(network: Network, blocks: tuple[Edges, ...] | None = None) -> tuple[int, ...]:
    """How many paths of each length begin at the input: C(L, k) H^k where every block has a skip and H heads.

    The coefficients of prod_l (s_l + H_l t): at block l a path takes the skip (s_l = 1, or 0 where it is cut) or one of
    H_l heads. `blocks` are the edges of the network, where they are known.
    """
    counts = [1]
    for block in edges(network) if blocks is None else blocks:
        longer = [0, *(count * block.heads for count in counts)]
        counts = [a * block.skip + b for a, b in zip([*counts, 0], longer, strict=True)]
    return tuple(counts)


def multiplied(factors: Callable[[int], Float[Tensor, "source head"]], network: Network) -> Watch:
    """A watch on attention that multiplies the write of every head by a factor of its own in every source;
    `factors(heads)` says which."""

    def watch(mixed: Graded, pattern: Tensor) -> Graded:
        sums, merged = mixed.deferred, mixed.value.ndim == 3
        batch = network.streams[0].shape[0]

        def times(parts: Tensor) -> Tensor:
            apart = split_axis(parts, LEADING, batch, -1) if merged else parts
            scaled = apart * factors(apart.shape[LEADING + 1])[:, None, None, None, :, None, None]
            return scaled.flatten(LEADING, LEADING + 1) if merged else scaled

        transposed = Backwards(times, tuple(mixed.value.shape))  # a diagonal matrix is its own
        return mixed.made(mixed.value, lambda: sums().through(times, transposed))

    return watch


def one_attention(seen: list[T], network: Network, layer: int) -> T:
    if len(seen) != 1:
        raise RefusalError(
            f"Block {layer} of {network.name} mixes tokens {len(seen)} times (two attentions, or a state space beside "
            "one), and values of heads need one attention a block: choose another model."
        )
    return seen[0]


def heads_apart(
    mixed: Float[Tensor, "before *merged token channel"], network: Network
) -> Float[Tensor, "before batch head token channel"]:
    """Batch and heads as two axes, where the model computes with them as one."""
    return mixed if mixed.ndim == 5 else split_axis(mixed, 1, network.streams[0].shape[0], -1)
