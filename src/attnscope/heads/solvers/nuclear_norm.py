"""Minimise 1/2 ||sum_j F_j(Z_j) - Y||^2 + beta sum_j ||Z_j||_* over Z, to a stated distance from the optimum.

Here F_j(Z) = Phi_j M, where M is Z reshaped (see `Problem`). The proximal step of the nuclear norm shrinks singular
values, so plain descent would work; acceleration, restarted whenever it points uphill, is much faster (Beck and
Teboulle 2009; O'Donoghue and Candes, arXiv:1204.3982).

The certificate does not trust the solver. For any V with ||F_j^T V||_2 <= beta for all j (spectral norms), and any Z,

    D(V) = <V, Y> - 1/2 ||V||^2  <=  1/2 ||F Z - Y||^2 + beta sum ||Z_j||_*,

because <V, F Z> <= sum ||F_j^T V||_2 ||Z_j||_* <= beta sum ||Z_j||_* and <V, Y - FZ> - 1/2||V||^2 <= 1/2 ||Y - FZ||^2.
The residual Y - FZ, scaled down far enough, is such a V, and at the optimum both sides are equal: their difference, the
gap, says how far above the optimum Z can be at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError

Blocks = Float[Tensor, "block row column"]


@dataclass(frozen=True)
class Solved:
    """The solution, its objective, and an upper bound on the distance of that objective from the optimum."""

    blocks: Blocks
    objective: float
    gap: float
    steps: int

    @property
    def rank(self) -> int:
        """The number of singular values above rounding level over all blocks, which is the number of heads needed."""
        values = torch.linalg.svdvals(self.blocks)
        return int((values > 1e-6 * values.max()).sum())


@dataclass(frozen=True)
class Problem:
    """The data: `features[j]` is Phi_j, of shape `[sample, row x inner]`.

    Z_j has the shape `[row, inner x answer]` and is reshaped to `[row x inner, answer]` to be multiplied by Phi_j.
    """

    features: Float[Tensor, "block sample coordinate"]
    answers: Float[Tensor, "sample answer"]
    rows: int
    beta: float

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise RefusalError(f"A penalty of {self.beta} has no unique optimum to certify: give a beta above 0.")

    @property
    def shape(self) -> tuple[int, int, int]:
        blocks, _, coordinates = self.features.shape
        return blocks, self.rows, coordinates // self.rows * self.answers.shape[-1]

    def predicted(self, blocks: Blocks) -> Float[Tensor, "sample answer"]:
        flat = blocks.reshape(len(blocks), self.features.shape[-1], self.answers.shape[-1])
        return torch.einsum("jnf,jfc->nc", self.features, flat)

    def adjoint(self, dual: Float[Tensor, "sample answer"]) -> Blocks:
        return torch.einsum("jnf,nc->jfc", self.features, dual).reshape(self.shape)

    def objective(self, blocks: Blocks) -> float:
        wrong = self.predicted(blocks) - self.answers
        return float(wrong.square().sum() / 2 + self.beta * torch.linalg.svdvals(blocks).sum())

    def bound(self, blocks: Blocks) -> float:
        """Return D(V), with V the best feasible multiple of the residual of these blocks."""
        wrong = self.answers - self.predicted(blocks)
        steepest = float(torch.linalg.matrix_norm(self.adjoint(wrong), ord=2).max())
        inner, size = float((wrong * self.answers).sum()), float(wrong.square().sum())
        most = self.beta / steepest if steepest else float("inf")
        scale = min(most, max(inner / size, 0.0)) if size else 0.0  # the maximum of scale inner - scale^2 size / 2
        return scale * inner - scale**2 * size / 2


def solve(problem: Problem, accuracy: float = 1e-8, steps: int = 20_000, check: int = 50) -> Solved:
    """Iterate until the gap is at most `accuracy` of the objective, or the steps are used up. See `Solved.gap`."""
    whole = problem.features.transpose(0, 1).flatten(1)  # all blocks side by side
    rate = 1 / float(torch.linalg.matrix_norm(whole, ord=2)) ** 2
    blocks = torch.zeros(problem.shape, dtype=problem.answers.dtype)
    ahead, momentum, last = blocks, 1.0, float("inf")
    best = Solved(blocks, problem.objective(blocks), float("inf"), 0)
    for step in range(1, steps + 1):
        slope = problem.adjoint(problem.predicted(ahead) - problem.answers)
        after = shrunk(ahead - rate * slope, rate * problem.beta)
        if float(((ahead - after) * (after - blocks)).sum()) > 0:  # momentum points uphill: restart without it
            ahead, momentum = blocks, 1.0
            slope = problem.adjoint(problem.predicted(ahead) - problem.answers)
            after = shrunk(ahead - rate * slope, rate * problem.beta)
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = after + (momentum - 1) / faster * (after - blocks)
        blocks, momentum = after, faster
        if step % check == 0 or step == steps:
            value = problem.objective(blocks)
            best = Solved(blocks, value, value - problem.bound(blocks), step)
            if best.gap <= accuracy * abs(value) or (value == last and best.gap < 1e-12 * abs(value)):
                break
            last = value
    return best


def shrunk(blocks: Blocks, by: float) -> Blocks:
    """Reduce singular values by `by`, but not below zero: the proximal step of the nuclear norm."""
    left, values, right = torch.linalg.svd(blocks, full_matrices=False)
    smaller: Tensor = (left * (values - by).clamp_min(0.0)[:, None]) @ right
    return smaller
