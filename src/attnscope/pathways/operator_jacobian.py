"""T beside J, the derivative of the model at the same input.

Both are matrices of the same shape, and both say what the output does with the input, but of different questions: J
what a small change does, with patterns, deviations and gates moving along; T what the input is made into, with all of
these held. Where nothing is frozen that could move, both are equal.

For y of independent signs, E |M^T y|^2 = ||M||_F^2, and E <T^T y, J^T y> = <T, J>_F: so norms, the angle between the
two and their distance follow from the same few products with both. Standard errors are those of the jackknife, which
leaves out one y at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.affine import Affine, Answers, Streams


@dataclass(frozen=True)
class BesideJacobian:
    """Estimates from `probes` random sign vectors, with their standard errors."""

    distance: float  # ||T - J||_F / ||J||_F
    distance_error: float
    cosine: float  # <T, J>_F / (||T||_F ||J||_F)
    cosine_error: float
    size: float  # ||T||_F / ||J||_F
    size_error: float
    probes: int

    def __str__(self) -> str:
        return (
            f"||T - J|| is {self.distance:.3g} (standard error {self.distance_error:.1g}) of ||J||, their cosine "
            f"{self.cosine:.3f} ({self.cosine_error:.1g}), ||T|| {self.size:.3g} ({self.size_error:.1g}) of ||J||"
        )


def jacobian_transposed_times(affine: Affine, answers: Answers) -> Streams:
    """J^T y for every y, by the model's own derivative: its blocks run on plain tensors, nothing frozen."""
    network = affine.network
    with torch.inference_mode(False), torch.enable_grad():
        leaf = network.streams[affine.first].detach().clone().requires_grad_()
        stream: Tensor = leaf
        for layer in range(affine.first, affine.last):
            stream = network.blocks[layer](stream)
        left = network.tail(stream) if affine.tail else stream
    given = [one.reshape(left.shape).to(left) for one in answers]
    back = [torch.autograd.grad(left, leaf, one, retain_graph=True)[0] for one in given]
    return torch.stack(back).reshape(len(answers), *affine.enters.shape)


def beside_jacobian(affine: Affine, probes: int, seed: int) -> BesideJacobian:
    if probes < 2:
        raise RefusalError(f"A standard error needs two probes or more, not {probes}.")
    # Drawn by the CPU wherever the network is: the same seed then means the same signs.
    generator = torch.Generator().manual_seed(seed)
    sums = []
    for begin in range(0, probes, affine.at_once):
        count = min(affine.at_once, probes - begin)
        signs = (2 * torch.randint(0, 2, (count, *affine.leaves.shape), generator=generator) - 1).to(affine.leaves)
        frozen, true = affine.transposed_times(signs).double(), jacobian_transposed_times(affine, signs).double()
        pairs = ((frozen, frozen), (true, true), (frozen, true))
        sums.append(torch.stack([(a * b).flatten(1).sum(1) for a, b in pairs]))
    every = torch.cat(sums, dim=1).T.tolist()
    distance, cosine, size = (jackknife(every, ratio) for ratio in (_distance, _cosine, _size))
    return BesideJacobian(*distance, *cosine, *size, probes)


Squares = Sequence[float]
"""Sums over probes of |T^T y|^2, |J^T y|^2 and <T^T y, J^T y>."""


def _distance(sums: Squares) -> float:
    frozen, true, both = sums
    return math.sqrt(max(frozen + true - 2 * both, 0.0) / true) if true > 0 else math.nan


def _cosine(sums: Squares) -> float:
    frozen, true, both = sums
    return both / math.sqrt(frozen * true) if frozen * true > 0 else math.nan


def _size(sums: Squares) -> float:
    frozen, true, _ = sums
    return math.sqrt(frozen / true) if true > 0 else math.nan


def jackknife(every: Sequence[Squares], ratio: Callable[[Squares], float]) -> tuple[float, float]:
    """A function of sums over draws, and its standard error from leaving out one draw at a time."""
    total = [math.fsum(column) for column in zip(*every, strict=True)]
    without = [ratio([t - o for t, o in zip(total, one, strict=True)]) for one in every]
    mean, count = math.fsum(without) / len(without), len(without)
    spread = math.fsum((value - mean) ** 2 for value in without)
    return ratio(total), math.sqrt(spread * (count - 1) / count)
