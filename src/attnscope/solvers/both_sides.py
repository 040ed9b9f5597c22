"""Exact ratios where rows are fuller than the head is wide: keys move as well as queries.

softmax gives row i its proportions exactly when t_ij = q_i . k_j - ln A_ij is the same on all of its support. A query
alone can see to that for |S| <= width keys and have a direction left to keep the others away; beyond that it cannot.
All queries and keys together can: there are (n + n_keys) * width numbers for sum(|S_i| - 1) equations, however full a
single row is. With C the centring of each row over its support, a step (dq, dk) changes C t to first order by

    J (dq, dk) = C (k_j . dq_i + q_i . dk_j),        J^T l = (sum over j of l_ij k_j,  sum over i of l_ij q_i),

l centred. The smallest step with C t + J (dq, dk) = 0 is J^T l with J J^T l = -C t, which conjugate gradients solve
without a matrix; C t is then of second order, and a few rounds (Gauss and Newton's) make it as small as asked for.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.solvers.descent import Target, onto_ratios

Pair = tuple[Float[Tensor, "row width"], Float[Tensor, "key width"]]
ENOUGH = 1e-3  # of the residual at the start of a round: the next round sees to the rest


class TwoSides:
    """The rows of a pattern by how they come to their ratios: full ones, with as many keys as the width or more, by
    queries and keys together; then the others, whose queries have room, by queries alone."""

    def __init__(self, target: Target, width: int) -> None:
        full = target.real.sum(1) >= width
        self.full, self.roomy = full.nonzero()[:, 0], (~full).nonzero()[:, 0]
        self.of_full, self.of_roomy = _some(target, self.full), _some(target, self.roomy)

    def onto_ratios(
        self, queries: Float[Tensor, "row width"], keys: Float[Tensor, "key width"], *, rounds: int, iterations: int
    ) -> Pair:
        """Nearby queries and keys with exact ratios in roomy rows, and nearly so in full ones."""
        precision = queries.dtype
        queries, keys = queries.double(), keys.double()  # in float32 conjugate gradients lose their way
        of_full = queries[self.full]
        for _ in range(rounds):
            to_queries, to_keys = _smallest_step(of_full, keys, self.of_full, iterations)
            of_full, keys = of_full + to_queries, keys + to_keys
        answer = queries.clone()
        answer[self.full] = of_full
        keys = keys.to(precision)  # queries alone then see to what rounding has left in roomy rows
        answer[self.roomy] = onto_ratios(queries[self.roomy], keys.double(), self.of_roomy)
        return answer.to(precision), keys


def _some(target: Target, rows: Int[Tensor, " some"]) -> Target:
    """These rows alone, with no more places than the fullest of them has keys: real places come first."""
    most = int(target.real[rows].sum(1).max()) if len(rows) else 1
    logs = target.log_weights[rows, :most].double()
    return Target(target.support[rows, :most], logs, target.real[rows, :most], False)


def ratio_residuals(
    queries: Float[Tensor, "row width"], keys: Float[Tensor, "key width"], target: Target
) -> Float[Tensor, "row k"]:
    """C t: how far the logits of every support entry are from its logarithm, the mean of its row taken off."""
    return _centred(torch.einsum("rkd,rd->rk", keys[target.support], queries) - target.log_weights, target)


def _smallest_step(queries: Tensor, keys: Tensor, target: Target, iterations: int) -> Pair:
    on = keys[target.support]

    def across(multipliers: Float[Tensor, "row k"]) -> Pair:  # J^T
        to_keys = torch.zeros_like(keys)
        to_keys.index_add_(0, target.support.flatten(), (multipliers[..., None] * queries[:, None]).flatten(0, 1))
        return torch.einsum("rk,rkd->rd", multipliers, on), to_keys

    def change(to_queries: Tensor, to_keys: Tensor) -> Float[Tensor, "row k"]:  # J
        along_keys = torch.einsum("rkd,rd->rk", to_keys[target.support], queries)
        return _centred(torch.einsum("rkd,rd->rk", on, to_queries) + along_keys, target)

    left = -ratio_residuals(queries, keys, target)
    multipliers, direction = torch.zeros_like(left), left.clone()
    first = square = float(left.square().sum())
    for _ in range(iterations):
        if not square > ENOUGH**2 * first:
            break
        moved = change(*across(direction))
        curvature = float((direction * moved).sum())
        if not curvature > 0:  # nothing that a step could still change
            break
        length = square / curvature
        multipliers += length * direction
        left -= length * moved
        before, square = square, float(left.square().sum())
        direction = left + square / before * direction
    return across(multipliers)


def _centred(values: Float[Tensor, "row k"], target: Target) -> Float[Tensor, "row k"]:
    values = values.masked_fill(~target.real, 0)
    return (values - values.sum(1, keepdim=True) / target.real.sum(1, keepdim=True)).masked_fill(~target.real, 0)
