"""Exact Shapley values with heads and MLPs as players.

Game. A coalition keeps exactly the paths all of whose edges (heads, and MLPs) are in it; its worth is the target T of
the paths it keeps. A path that uses the k players of a set S is a unanimity game on S, which gives 1/k of its
contribution to each of them. Sorting paths by k for every player would need a graded pass with as many lengths as there
are blocks and MLPs; the following needs no grading.

Owen's multilinear extension (1972). Multiply the output of player p by a gate x_p. A path uses a player at most
once, so F(x) = T is linear in every x_p, equals the worth of a coalition at 0/1 corners, and

    phi_p = integral from 0 to 1 of  dF/dx_p (t, ..., t) dt.

Proof for one path on S with k = |S| and contribution c: F = c prod_{q in S} x_q, so dF/dx_p on the diagonal is
c t^(k-1), whose integral is c/k; both sides are linear in F.

Quadrature is exact. On the diagonal dF/dx_p is a polynomial in t of degree at most D - 1, with D the number of places
where a path can meet a player. Gauss-Legendre with q nodes integrates degree 2q - 1 exactly, so q = ceil(D/2) nodes are
enough. Each node takes one pass forward and one backward; all nodes go side by side, as sources of one graded stream,
one block at a time: patterns and norms are computed once for all of them.

A derivative is an inner product. Let u arrive at player p's gate and g be the adjoint after it: the gate passes x_p u,
so dF/dx_p = <g, u>: the pass forward keeps u, the tape gives g, and no block runs forward a second time. If a rule
cannot be recorded on a tape, blocks are differentiated instead (`_differentiated`); tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.progress import Advance, silent
from attnscope.pathways.graded import Graded, Watch, watching
from attnscope.pathways.network import Edges, Network, edges, scale_heads, split_heads
from attnscope.pathways.sums import Backwards, Sums
from attnscope.pathways.tape import pulled_if_recorded
from attnscope.pathways.targets import Functional, network_read_by, pulled_back_through_tail

Players = Literal["heads", "heads and mlps"]


@dataclass(frozen=True)
class ShapleyValues:
    """Shapley values: `heads[l][h]` and `mlps[l][i]` add up to `everything - nothing`, the target with all players
    minus the target without any.
    """

    heads: tuple[Float[Tensor, " head"], ...]
    mlps: tuple[Float[Tensor, " mlp"], ...]
    nothing: float
    everything: float

    @property
    def total(self) -> float:
        return float(sum(values.sum() for values in (*self.heads, *self.mlps)))


def shapley(
    network: Network,
    target: Functional,
    players: Players = "heads and mlps",
    at_once: int = 8,
    advance: Advance = silent,
    blocks: tuple[Edges, ...] | None = None,
    nothing: float | None = None,
) -> ShapleyValues:
    """Return the exact Shapley value of every player. `at_once` nodes are held in memory together, with the input of
    every gate. `blocks` are the edges of the network, and `nothing` the target without any player, if known.
    """
    network = network_read_by(target, network)
    blocks = edges(network) if blocks is None else blocks
    if players == "heads":
        blocks = tuple(replace(block, mlps=0) for block in blocks)
    last, constant = pulled_back_through_tail(network, target)
    nodes, weights = _quadrature(sum((block.heads > 0) + block.mlps for block in blocks), last)
    if nothing is not None:
        nodes, weights = nodes[1:], weights[1:]
    heads = [last.new_zeros(block.heads) for block in blocks]
    mlps = [last.new_zeros(block.mlps) for block in blocks]
    worth: list[Tensor] = []
    for start in range(0, len(nodes), at_once):
        some = slice(start, start + at_once)
        arrived, left = _forward(network, blocks, nodes[some])
        worth.append(torch.einsum("q...,...->q", left, last) + constant)
        adjoint = last.expand(len(nodes[some]), *last.shape)
        for layer in reversed(range(network.layers)):
            adjoint, slopes = _backward(network, layer, blocks[layer], nodes[some], arrived.pop(), adjoint)
            heads[layer] += weights[some] @ slopes[:, : blocks[layer].heads]
            mlps[layer] += weights[some] @ slopes[:, blocks[layer].heads :]
        advance("values", min(start + at_once, len(nodes)), len(nodes))
    everything = float((network.streams[-1] * last).sum()) + constant
    nothing = float(torch.cat(worth)[0]) if nothing is None else nothing
    return ShapleyValues(tuple(heads), tuple(mlps), nothing, everything)


def _quadrature(places: int, like: Tensor) -> tuple[Float[Tensor, " node"], Float[Tensor, " node"]]:
    """Return nodes on [0, 1] and their weights. The first node is t = 0 with weight zero, where F is the empty
    coalition's worth.
    """
    nodes, weights = np.polynomial.legendre.leggauss(max(1, -(-places // 2)))
    padded = np.concatenate([[0.0], (nodes + 1) / 2]), np.concatenate([[0.0], weights / 2])
    return like.new_tensor(padded[0]), like.new_tensor(padded[1])


@dataclass(frozen=True)
class _Arrived:
    """The stream that enters a block and the inputs of its gates (attention, then MLPs), at every node."""

    stream: Float[Tensor, " node *shape"]
    at_gates: tuple[Float[Tensor, " node *inner"], ...]


@torch.no_grad()
def _forward(
    network: Network, blocks: tuple[Edges, ...], nodes: Float[Tensor, " node"]
) -> tuple[list[_Arrived], Float[Tensor, " node *shape"]]:
    """Return the inputs of every block and its gates at every node, and the stream that leaves the last block."""
    stream: Tensor = network.streams[0].expand(len(nodes), *network.streams[0].shape)
    arrived = []
    for layer, block in enumerate(blocks):
        gates = nodes[:, None].expand(-1, block.heads + block.mlps)
        after, at_gates = _gated(network, layer, block, stream, gates)
        arrived.append(_Arrived(stream, at_gates))
        stream = after
    return arrived, stream


@torch.no_grad()
def _backward(
    network: Network, layer: int, block: Edges, nodes: Tensor, arrived: _Arrived, adjoint: Tensor
) -> tuple[Float[Tensor, " node *shape"], Float[Tensor, "node player"]]:
    """Return the adjoint before the block with index `layer`, and dF/dx_p of its players."""
    gates = nodes[:, None].expand(-1, block.heads + block.mlps)
    with _gates(network, block, gates):
        pulled = pulled_if_recorded(network, layer, Sums(adjoint[:, None, None]), "none", heads=True, mlps=True)
    if pulled is None:
        return _differentiated(network, layer, block, nodes, arrived.stream, adjoint)
    behind = [*pulled.kept, *pulled.kept_mlps[: block.mlps]]
    slopes = [adjoint.new_zeros(len(nodes), 0)]
    for player, (arriving, sums) in enumerate(zip(arrived.at_gates, behind, strict=True)):
        of_heads = block.heads > 0 and player == 0
        if sums is None:  # the output of this gate is not used
            slopes.append(adjoint.new_zeros(len(nodes), block.heads if of_heads else 1))
        elif of_heads:
            pair = (split_heads(tensor, network) for tensor in (arriving, sums.dense[:, 0, 0]))
            slopes.append(torch.einsum("qnhtc,qnhtc->qh", *pair))
        else:
            slopes.append((arriving * sums.dense[:, 0, 0]).flatten(1).sum(1, keepdim=True))
    before = torch.zeros_like(arrived.stream) if pulled.before is None else pulled.before.dense[:, 0, 0]
    return before, torch.cat(slopes, 1)


def _differentiated(
    network: Network, layer: int, block: Edges, nodes: Tensor, stream: Tensor, adjoint: Tensor
) -> tuple[Float[Tensor, " node *shape"], Float[Tensor, "node player"]]:
    """Do the same as `_backward` by differentiating a forward run of the block: slow, but for any rule."""
    with torch.enable_grad():
        leaf = stream.clone().requires_grad_()
        gates = nodes[:, None].repeat(1, block.heads + block.mlps).requires_grad_()
        answer, _ = _gated(network, layer, block, leaf, gates)
        before, slopes = torch.autograd.grad(answer, [leaf, gates], adjoint, allow_unused=True)
    return before, torch.zeros_like(gates) if slopes is None else slopes


def _gated(
    network: Network, layer: int, block: Edges, stream: Float[Tensor, " node *shape"], gates: Tensor
) -> tuple[Float[Tensor, " node *shape"], tuple[Float[Tensor, " node *inner"], ...]]:
    """Run the block with index `layer` at all nodes, with a gate on every player. Also return the inputs of the gates,
    attention first.
    """
    at_heads: list[Tensor] = []
    at_mlps: list[Tensor] = []

    def keep(arriving: list[Tensor], most: int) -> Watch:
        def watch(edge: Graded, factor: Tensor) -> None:
            if len(arriving) < most:
                arriving.append(edge.sums.parts[:, 0, 0])

        return watch

    graded = Graded.of(network.streams[layer], stream[:, None, None], slice(None), "none")
    with watching(keep(at_heads, 1)), watching(keep(at_mlps, block.mlps), "mlp"), _gates(network, block, gates):
        after = network.block(layer, graded).parts[:, 0, 0]
    return after, (*at_heads, *at_mlps)


@contextmanager
def _gates(network: Network, block: Edges, gates: Float[Tensor, "node player"]) -> Iterator[None]:
    """Multiply the output of each player by its gate inside this context."""
    passed: list[int] = []

    def on_mlp(activated: Graded, gate: Tensor) -> Graded | None:
        if len(passed) >= block.mlps:  # MLPs are not players
            return None
        factor = gates[:, block.heads + len(passed)]
        passed.append(1)
        sums = activated.deferred

        def times(p: Tensor) -> Tensor:
            return p * factor.reshape(-1, *[1] * (p.ndim - 1))

        transposed = Backwards(times, tuple(activated.value.shape))  # a diagonal matrix is its own transpose
        return activated.made(activated.value, lambda: sums().through(times, transposed))

    with watching(scale_heads(lambda heads: gates[:, :heads], network)), watching(on_mlp, "mlp"):
        yield
