"""The whole network at one input as a single affine map, out = T x + b (arXiv:2601.17958), without ever storing T.

Freeze, for one input, every attention pattern A_h, every norm's deviation and every ratio phi(z)/z of an activation.
With X as a vector, token after token, (A (x) M) vec(X) = vec(A X M^T), and every part of a block is a matrix:

    attention   sum_h A_h (x) (W_V^h W_O^h)^T          tokens are mixed by A_h, channels by the head's weights
    norm        diag(1/sigma_i) (x) diag(gamma)(I - 11^T/d)
    MLP         blockdiag_i (W_1 diag(phi(z_i)/z_i) W_2)^T
    skip        I

Their product over blocks is T, of (n d)^2 entries; biases and shifts of norms, carried through all later parts, add up
to b. The frozen network of paths already runs a model's own code on parts of its stream. A product T x is one run of it
on other parts, with constants dropped. A product T^T y is the derivative of that run, taken block by block from the
last: each block's run is linear in its parts, so it may be differentiated at any point, and one graph is enough for any
number of y.

T and J, the derivative of the model at the same input, are matrices of the same shape. J is the effect of a small
change, which also changes patterns, deviations and gates; T maps the input to the output with all of these fixed. They
are equal if nothing that was frozen depends on the input. For y of independent signs, E |M^T y|^2 = ||M||_F^2, and E
<T^T y, J^T y> = <T, J>_F: so norms, the angle between the two and their distance follow from the same few products with
both. Standard errors are by the jackknife, which leaves out one y at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import Graded
from attnscope.pathways.network import Network

MAX_NUMBERS = 2**25  # most numbers in one block, over all products computed together

Streams = Float[Tensor, "many token width"]
Answers = Float[Tensor, "many *leaves"]


@dataclass(frozen=True, eq=False)
class Affine:
    """Blocks `first` to `last - 1` of a network, and the network's tail if `tail` is set."""

    network: Network
    first: int
    last: int
    tail: bool

    @property
    def enters(self) -> Float[Tensor, "token width"]:
        """The stream that enters block `first` in the model."""
        return self.network.streams[self.first].flatten(0, -2)

    @property
    def leaves(self) -> Float[Tensor, "*leaves"]:
        """The model's output for `enters`: states or logits of tokens, or one row of classes."""
        output = self.network.output if self.tail else self.network.streams[self.last]
        return output.flatten(0, -2) if output.ndim > 2 or len(output) > 1 else output[0]

    @property
    def at_once(self) -> int:
        """Return how many products fit into memory together: a block is about eight streams wide inside."""
        return max(1, MAX_NUMBERS // max(8 * self.enters.numel(), self.leaves.numel()))

    @torch.no_grad()
    def times(self, vectors: Streams) -> Answers:
        """Return T x for every x."""
        return torch.cat([self._times(some) for some in torch.split(vectors, self.at_once)])

    def _times(self, vectors: Streams) -> Answers:
        # Some models have the token axis before the batch axis, here of size one: only the shape differs.
        parts = vectors.reshape(len(vectors), 1, 1, *self.network.streams[self.first].shape)
        for piece in self._pieces():
            parts = self._through(piece, parts, None).parts
        return parts.reshape(len(vectors), *self.leaves.shape)

    def transposed_times(self, answers: Answers) -> Streams:
        """Return T^T y for every y."""
        return torch.cat([self._transposed_times(some) for some in torch.split(answers, self.at_once)])

    def _transposed_times(self, answers: Answers) -> Streams:
        many = len(answers)
        for piece in reversed(list(self._pieces())):
            answers = self._back(piece, answers)
        return answers.reshape(many, *self.enters.shape)

    def _back(self, piece: int, answers: Float[Tensor, " many *left"]) -> Float[Tensor, " many *entered"]:
        """Carry every y back through one block: autograd takes all of them together through one graph."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = torch.zeros_like(self.network.streams[piece], requires_grad=True)
            left = self._through(piece, leaf[None, None, None], None).parts[0, 0, 0]
        stacked = answers.reshape(len(answers), *left.shape).to(left)
        back: Tensor = torch.autograd.grad(left, leaf, stacked, is_grads_batched=True)[0]
        return back

    @cached_property
    def offset(self) -> Float[Tensor, "*leaves"]:
        """The constant b of out = T x + b, the sum of all constants."""
        with torch.no_grad():
            parts = torch.zeros_like(self.network.streams[self.first])[None, None, None]
            for piece in self._pieces():
                parts = self._through(piece, parts, 0).parts.clone()  # constants are added in place
        return parts.reshape(self.leaves.shape)

    def _pieces(self) -> Iterator[int]:
        """Yield the index of each block, then the index of the tail, which follows the last block."""
        yield from range(self.first, self.last)
        if self.tail:
            yield self.network.layers

    def _through(self, piece: int, parts: Tensor, constants: int | None) -> Graded:
        entering = Graded.of(self.network.streams[piece], parts, constants, "none")
        return self.network.finish(entering) if piece == self.network.layers else self.network.block(piece, entering)


@dataclass(frozen=True)
class BesideJacobian:
    """T compared with the Jacobian J: estimates from `probes` random sign vectors, with their standard errors."""

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
    """Return J^T y for every y, by the model's own derivative: blocks run on plain tensors and nothing is frozen."""
    network = affine.network
    with torch.inference_mode(False), torch.enable_grad():
        leaf = network.streams[affine.first].detach().clone().requires_grad_()
        stream: Tensor = leaf
        for layer in range(affine.first, affine.last):
            stream = network.blocks[layer](stream)
        left = network.tail(stream) if affine.tail else stream
    back = [torch.autograd.grad(left, leaf, y.reshape(left.shape).to(left), retain_graph=True)[0] for y in answers]
    return torch.stack(back).reshape(len(answers), *affine.enters.shape)


def beside_jacobian(affine: Affine, probes: int, seed: int) -> BesideJacobian:
    if probes < 2:
        raise RefusalError(f"A standard error needs two probes or more, not {probes}.")
    # Signs are drawn on the CPU: the same seed gives the same signs on any device.
    generator = torch.Generator().manual_seed(seed)
    sums = []
    for begin in range(0, probes, affine.at_once):
        count = min(affine.at_once, probes - begin)
        signs = (2 * torch.randint(0, 2, (count, *affine.leaves.shape), generator=generator) - 1).to(affine.leaves)
        frozen, true = affine.transposed_times(signs).double(), jacobian_transposed_times(affine, signs).double()
        pairs = ((frozen, frozen), (true, true), (frozen, true))
        sums.append(torch.stack([(a * b).flatten(1).sum(1) for a, b in pairs]))
    probed = torch.cat(sums, dim=1).T.tolist()
    distance, cosine, size = (jackknife(probed, ratio) for ratio in (_distance, _cosine, _size))
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
    """Return a function of sums over draws, and its standard error from leaving out one draw at a time."""
    total = [math.fsum(column) for column in zip(*every, strict=True)]
    without = [ratio([t - o for t, o in zip(total, one, strict=True)]) for one in every]
    mean, count = math.fsum(without) / len(without), len(without)
    spread = math.fsum((value - mean) ** 2 for value in without)
    return ratio(total), math.sqrt(spread * (count - 1) / count)


# ARPACK stops when an eigenvalue of T^T T is known to this relative error, and singular values to half of it. With a
# tolerance below the rounding of a product it would never stop.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def as_linear_operator(affine: Affine) -> Any:
    """Return T as a scipy operator on flat vectors."""
    from scipy.sparse.linalg import LinearOperator

    enters, leaves = affine.enters, affine.leaves

    def times(vectors: Any) -> Any:
        stacked = torch.as_tensor(np.asarray(vectors).T.reshape(-1, *enters.shape)).to(enters)
        return affine.times(stacked).flatten(1).T.double().cpu().numpy()

    def transposed_times(answers: Any) -> Any:
        stacked = torch.as_tensor(np.asarray(answers).T.reshape(-1, *leaves.shape)).to(enters)
        return affine.transposed_times(stacked).flatten(1).T.double().cpu().numpy()

    return LinearOperator(
        (leaves.numel(), enters.numel()),
        matvec=lambda x: times(x).reshape(-1),
        rmatvec=lambda y: transposed_times(y).reshape(-1),
        matmat=times,
        rmatmat=transposed_times,
        dtype=np.float64,
    )


def singular_values(affine: Affine, k: int, seed: int) -> Float[Tensor, " k"]:
    """Return the k largest singular values of T in descending order, by Lanczos iteration on T^T T (scipy's ARPACK)."""
    from scipy.sparse.linalg import svds

    most = min(affine.leaves.numel(), affine.enters.numel()) - 1
    if not 1 <= k <= most:
        raise RefusalError(f"Lanczos iteration finds 1 to {most} singular values here, not {k}: ask for as many.")
    start = np.random.default_rng(seed).standard_normal(most + 1)
    options = {"tol": TOLERANCE[affine.enters.dtype], "v0": start, "return_singular_vectors": False, "solver": "arpack"}
    found = svds(as_linear_operator(affine), k=k, **options)
    return torch.from_numpy(np.sort(found)[::-1].copy()).to(affine.enters)
