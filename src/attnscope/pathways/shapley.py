"""Exact Shapley values when heads and MLPs all are players.

Game. A coalition keeps exactly the paths all of whose edges (heads, and MLPs) are in it; its worth is the target T of
what is kept. A path that uses the k players of a set S is a unanimity game on S, which gives 1/k of its contribution
to each of them. Sorting paths by k for every player would need a graded pass with as many lengths as there are blocks
and MLPs; the following needs no grading at all.

Owen's multilinear extension (1972). Multiply what passes through player p by a gate x_p. A path uses a player at most
once, so F(x) = T is linear in every x_p, equals the worth of a coalition at 0/1 corners, and

    phi_p = integral from 0 to 1 of  dF/dx_p (t, ..., t) dt.

Proof for one path on S with k = |S| and contribution c: F = c prod_{q in S} x_q, so dF/dx_p on the diagonal is
c t^(k-1), whose integral is c/k; both sides are linear in F.

Quadrature is exact. On the diagonal dF/dx_p is a polynomial in t of degree at most D - 1, with D the number of places
where a path can meet a player. Gauss-Legendre with q nodes integrates degree 2q - 1 exactly, so q = ceil(D/2) do. One
pass forward and one backward for each node, a block at a time, nodes side by side as sources of one graded stream:
patterns and norms are computed once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.progress import Advance, silent
from attnscope.pathways.edges import Edges, edges, multiplied
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.network import Network
from attnscope.pathways.targets import Functional, pulled_back_through_tail, seen_by

Players = Literal["heads", "heads and mlps"]


@dataclass(frozen=True)
class ShapleyValues:
    """`heads[l][h]` and `mlps[l][i]` add up to `everything - nothing`: the target with all players and with none."""

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
) -> ShapleyValues:
    """The exact Shapley value of every player; `at_once` nodes are held in memory together."""
    network = seen_by(target, network)
    found = edges(network)
    if players == "heads":
        found = tuple(replace(block, mlps=0) for block in found)
    last, constant = pulled_back_through_tail(network, target)
    nodes, weights = _quadrature(sum((block.heads > 0) + block.mlps for block in found), last)
    heads = [last.new_zeros(block.heads) for block in found]
    mlps = [last.new_zeros(block.mlps) for block in found]
    worth: list[Tensor] = []
    for start in range(0, len(nodes), at_once):
        some = slice(start, start + at_once)
        streams = _forward(network, found, nodes[some])
        worth.append(torch.einsum("q...,...->q", streams[-1], last) + constant)
        adjoint = last.expand(len(nodes[some]), *last.shape)
        for layer in reversed(range(network.layers)):
            adjoint, slopes = _backward(network, layer, found[layer], nodes[some], streams.pop(-2), adjoint)
            heads[layer] += weights[some] @ slopes[:, : found[layer].heads]
            mlps[layer] += weights[some] @ slopes[:, found[layer].heads :]
        advance("values", min(start + at_once, len(nodes)), len(nodes))
    every = torch.cat(worth)
    return ShapleyValues(tuple(heads), tuple(mlps), float(every[0]), float(every[1]))


def _quadrature(places: int, like: Tensor) -> tuple[Float[Tensor, " node"], Float[Tensor, " node"]]:
    """Nodes on [0, 1]; before them t = 0 and t = 1 with weight zero, where F is the worth of nobody and of all."""
    nodes, weights = np.polynomial.legendre.leggauss(max(1, -(-places // 2)))
    padded = np.concatenate([[0.0, 1.0], (nodes + 1) / 2]), np.concatenate([[0.0, 0.0], weights / 2])
    return like.new_tensor(padded[0]), like.new_tensor(padded[1])


@torch.no_grad()
def _forward(network: Network, found: tuple[Edges, ...], nodes: Float[Tensor, " node"]) -> list[Tensor]:
    """The stream before every block and after the last, at every node: [node, *shape]."""
    entering = network.streams[0]
    streams = [entering.expand(len(nodes), *entering.shape)]
    for layer, block in enumerate(found):
        gates = nodes[:, None].expand(-1, block.heads + block.mlps)
        streams.append(_gated(network, layer, block, streams[-1], gates))
    return streams


def _backward(
    network: Network, layer: int, block: Edges, nodes: Tensor, stream: Tensor, adjoint: Tensor
) -> tuple[Float[Tensor, " node *shape"], Float[Tensor, "node player"]]:
    with torch.enable_grad():
        leaf = stream.clone().requires_grad_()
        gates = nodes[:, None].repeat(1, block.heads + block.mlps).requires_grad_()
        answer = _gated(network, layer, block, leaf, gates)
        before, slopes = torch.autograd.grad(answer, [leaf, gates], adjoint, allow_unused=True)
    return before, torch.zeros_like(gates) if slopes is None else slopes


def _gated(
    network: Network, layer: int, block: Edges, stream: Float[Tensor, " node *shape"], gates: Tensor
) -> Float[Tensor, " node *shape"]:
    """Block `layer` with a gate on every player, on all nodes."""
    met: list[int] = []

    def on_mlp(activated: Graded, gate: Tensor) -> Graded | None:
        if len(met) >= block.mlps:  # MLPs are not players
            return None
        factor = gates[:, block.heads + len(met)]
        met.append(1)
        sums = activated.sums
        return activated.made(
            activated.value, lambda: sums.through(lambda p: p * factor.reshape(-1, *[1] * (p.ndim - 1)))
        )

    graded = Graded.of(network.streams[layer], stream[:, None, None], slice(None), "none")
    with watching(multiplied(lambda heads: gates[:, :heads], network)), watching(on_mlp, "mlp"):
        return network.block(layer, graded).parts[:, 0, 0]
