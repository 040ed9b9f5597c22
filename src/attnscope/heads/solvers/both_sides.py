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

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.heads.accuracy import Accuracy, Factors, with_exact_ratios
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.descent import Target, onto_ratios
from attnscope.heads.solvers.keys import Keys
from attnscope.heads.solvers.settling import settled

# Queries by interpolation: the smallest query whose products with the keys of its support are c + ln A, exactly.
#
# With K_S the support's keys as rows, the smallest solution of K_S q = c + ln A_S is
#
#     q(c) = K_S^+ ln A_S  +  c K_S^+ 1,
#
# so that the row has its ratios at once, and the offset c, which softmax does not see on the support, is free to be as
# large as the leak onto the other keys asks. On keys of coherence mu another key receives at most
# c k mu / (1 - (k - 1) mu) (Gershgorin), which stays below c when mu < 1 / (2k - 1): low coherence is all this needs.

_ROWS_AT_ONCE = 4096
_INEXACT = 1e-11
NAMED_ROWS = 20


def interpolated(pattern: Pattern, keys: Keys, accuracy: Accuracy) -> Factors:
    """Factors on these keys: exact ratios, and in every row the smallest offset that leaks no more than asked."""
    base, direction = interpolation(pattern, keys.array, np.arange(pattern.n))
    found = settled(base, direction, keys.array, pattern, accuracy)
    queries = with_exact_ratios(found.queries, keys.array, pattern)
    return Factors(queries, keys.array, {**keys.facts(), **leaking(~found.met)})


def leaking(rows: np.ndarray) -> Mapping[str, Any]:
    """The notes on rows that leak more than asked whatever the scale: how many, and the first of them."""
    return {"leaking": int(rows.sum()), "leaking_rows": np.flatnonzero(rows)[:NAMED_ROWS].tolist()}


def interpolation(
    pattern: Pattern, keys: Float[np.ndarray, "key width"], rows: Int[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, "row width"], Float[np.ndarray, "row width"]]:
    """K_S^+ ln A_S and K_S^+ 1 of these rows."""
    support, weights, real = pattern.padded()
    base, direction = np.empty((len(rows), keys.shape[1])), np.empty((len(rows), keys.shape[1]))
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        some = rows[part]
        wanted = np.stack([np.where(real[some], np.log(weights[some]), 0), real[some].astype(np.float64)], axis=-1)
        chosen = keys[support[some]] * real[some][..., None]
        base[part], direction[part] = np.moveaxis(_smallest(chosen, wanted, ~real[some]), -1, 0)
    return base, direction


def _smallest(
    chosen: Float[np.ndarray, "row k width"], wanted: Float[np.ndarray, "row k two"], padding: np.ndarray
) -> Float[np.ndarray, "row width two"]:
    """K_S^T (K_S K_S^T)^-1 wanted, by the k x k Gram matrix; rows whose keys are too dependent for that, by the SVD."""
    flipped = np.swapaxes(chosen, 1, 2)
    gram = chosen @ flipped
    places = np.arange(gram.shape[1])
    gram[:, places, places] += padding
    if gram.shape[1] > chosen.shape[2]:
        return np.asarray(np.linalg.pinv(chosen) @ wanted)
    try:
        answer = flipped @ np.linalg.solve(gram, wanted)
        answer += flipped @ np.linalg.solve(gram, wanted - chosen @ answer)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.pinv(chosen) @ wanted)
    scale = np.abs(wanted).max((1, 2))
    inexact = ~(np.abs(wanted - chosen @ answer).max((1, 2)) <= _INEXACT * scale)
    if inexact.any():
        answer[inexact] = np.linalg.pinv(chosen[inexact]) @ wanted[inexact]
    return np.asarray(answer)


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
