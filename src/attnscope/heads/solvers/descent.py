"""Descent on a pattern: the gradient of the leak for queries and keys in one fused pass, and steps to exact ratios.

For row i with support S write s_j = q . k_j for its logits and L = lse(s on S). With

    e_j = exp(s_j - L)   off the support,        U = sum of e_j,        z = U / (1 + U)

z is the leak of the row: the share of its attention that falls on zeros. Descent minimises the height

    sum over rows of  urgency h(ln U)  +  stiffness / 2 * sum over S of (r_j - mean r)^2,      r_j = s_j - ln A_ij

where h' = z / (z + forgiven): a row that leaks much is pulled with force 1 however much it leaks (if z itself were
minimised, hopeless rows would stop pulling), and a row that leaks far less than `forgiven` is left alone. `urgency`
weighs the rows: rows that have failed for long pull more on the keys.

The slope with respect to the logits, by the chain rule through ln U = ln sum exp(s off S) - lse(s on S):

    off the support    a e_j,       a = urgency h' / U = urgency / ((z + forgiven) (1 + U))
    on the support     -a U softmax(s on S)_j + stiffness (r_j - mean r)

Both, divided by a, overwrite the block of e; the factor a is applied to the narrow matrices instead. So a block needs
one product, one exp and two products: d/dq = ds K and d/dk = ds^T q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.heads.head import KeyTensor, QueryTensor
from attnscope.heads.pattern import Pattern

BLOCK_ELEMENTS = 2**19  # numbers in one block: 2 MB in float32, which stays in the cache between the products
# e^30 squared and summed over any row still fits single precision; e^-50 is negligible, and subnormal numbers (below
# e^-87) would make the products ten times slower.
EXPONENTS = (-50.0, 30.0)


@dataclass(frozen=True, eq=False)
class Target:
    """A pattern as tensors with `k` slots per row; `real` marks the slots in use."""

    support: Int[Tensor, "row k"]
    log_weights: Float[Tensor, "row k"]
    real: Bool[Tensor, "row k"]
    causal: bool

    @classmethod
    def of(cls, pattern: Pattern, dtype: torch.dtype = torch.float32) -> Target:
        support, weights, real = (torch.from_numpy(array) for array in pattern.padded())
        return cls(support, weights.log().to(dtype), real, pattern.causal)


@dataclass(frozen=True, eq=False)
class Slopes:
    """The gradient of the height (see the module) with respect to queries and keys, and the leak of every row."""

    queries: QueryTensor
    keys: KeyTensor
    leaks: Float[Tensor, " row"]


def slopes(
    queries: QueryTensor,
    keys: KeyTensor,
    target: Target,
    urgency: Float[Tensor, " row"],
    *,
    forgiven: float,
    stiffness: float,
) -> Slopes:
    """Return the gradient of the height, and the leaks, with memory for one block only."""
    n, n_keys = len(queries), len(keys)
    for_queries, for_keys = torch.empty_like(queries), torch.zeros_like(keys)
    leaks = queries.new_empty(n)
    at_once = max(1, BLOCK_ELEMENTS // n_keys)
    buffer = queries.new_empty(min(at_once, n) * n_keys)
    # A column -L on the queries and a column 1 on the keys make the product give s - L at once.
    keys_and_one = torch.cat([keys, keys.new_ones(n_keys, 1)], dim=1)
    for first in range(0, n, at_once):
        last = min(first + at_once, n)
        seen = min(last, n_keys) if target.causal else n_keys
        support, real, some = target.support[first:last], target.real[first:last], queries[first:last]
        on = torch.einsum("rkd,rd->rk", keys[support], some).masked_fill(~real, -torch.inf)
        level = on.logsumexp(1, keepdim=True)
        block = buffer[: (last - first) * seen].view(last - first, seen)
        torch.mm(torch.cat([some, -level], dim=1), keys_and_one[:seen].T, out=block)
        block.clamp_(*EXPONENTS).exp_()
        if target.causal and first < seen:
            block[:, first:].tril_()
        block.scatter_(1, support, 0.0)
        off = block.sum(1, keepdim=True)
        leak = off / (1 + off)
        pull = urgency[first:last, None] / ((leak + forgiven) * (1 + off))
        residual = (on - target.log_weights[first:last]).masked_fill(~real, 0)
        residual -= residual.sum(1, keepdim=True) / real.sum(1, keepdim=True)
        on_slope = stiffness * residual - pull * off * (on - level).exp()
        block.scatter_add_(1, support, (on_slope / pull).masked_fill(~real, 0))
        for_queries[first:last] = block @ keys[:seen] * pull
        for_keys[:seen].addmm_(block.T, some * pull)
        leaks[first:last] = leak[:, 0]
    return Slopes(for_queries, for_keys, leaks)


def onto_ratios(queries: QueryTensor, keys: KeyTensor, target: Target) -> QueryTensor:
    """Return nearby queries with exact ratios, like `with_exact_ratios`, but fast enough for every step of a descent.

    Normal equations in float64 replace the pseudo-inverse. A ridge of 1e-12 of the mean square replaces the rank
    decision, so rows without an exact solution (more support keys than width + 1) get a nearly least-squares one.
    """
    if target.support.shape[1] == 1:
        return queries
    answer = torch.empty_like(queries)
    at_once = max(1, BLOCK_ELEMENTS // (target.support.shape[1] * queries.shape[1]))
    for first in range(0, len(queries), at_once):
        rows = slice(first, first + at_once)
        chosen, real = keys[target.support[rows]].double(), target.real[rows, 1:].double()
        differences = (chosen[:, 1:] - chosen[:, :1]) * real[..., None]
        wanted = (target.log_weights[rows, 1:] - target.log_weights[rows, :1]).double() * real
        exact = queries[rows].double()
        missing = wanted - torch.einsum("rkd,rd->rk", differences, exact)
        gram = differences @ differences.mT
        square = gram.diagonal(dim1=1, dim2=2)
        square += 1e-12 * square.mean(1, keepdim=True) + (1 - real) + 1e-30
        multipliers, _ = torch.linalg.solve_ex(gram, missing[..., None])
        answer[rows] = (exact + (differences.mT @ multipliers)[..., 0]).to(queries.dtype)
    return answer


class Adam:
    """Adam (arXiv:1412.6980) on one tensor, in place."""

    def __init__(self, values: Tensor, first_decay: float = 0.9, second_decay: float = 0.98) -> None:
        self.values, self.decays, self.steps = values, (first_decay, second_decay), 0
        self.mean, self.square = torch.zeros_like(values), torch.zeros_like(values)

    def step(self, slope: Tensor, rate: float) -> None:
        self.steps += 1
        first, second = self.decays
        self.mean.lerp_(slope, 1 - first)
        self.square.mul_(second).addcmul_(slope, slope, value=1 - second)
        spread = (self.square / (1 - second**self.steps)).sqrt_().add_(1e-12)
        self.values.addcdiv_(self.mean, spread, value=-rate / (1 - first**self.steps))


Pair = tuple[QueryTensor, KeyTensor]
ENOUGH = 1e-3  # a round stops at this share of its first residual; the next round continues from there


class TwoSides:
    """Make ratios exact where rows have more keys than the head has dimensions, by moving keys as well as queries.

    softmax gives row i its proportions exactly when t_ij = q_i . k_j - ln A_ij is the same on all of its support. A
    query alone can do that for |S| <= width keys and have a direction left to keep the others away; beyond that it
    cannot. All queries and keys together can: there are (n + n_keys) * width numbers for sum(|S_i| - 1) equations,
    however full a single row is. With C the centring of each row over its support, a step (dq, dk) changes C t to first
    order by

        J (dq, dk) = C (k_j . dq_i + q_i . dk_j),        J^T l = (sum over j of l_ij k_j,  sum over i of l_ij q_i),

    with l centred over each support. The smallest step with C t + J (dq, dk) = 0 is J^T l with J J^T l = -C t, which
    conjugate gradients solve without a matrix; C t is then of second order, and a few rounds (Gauss-Newton) make it as
    small as required.

    Full rows, with as many keys as the width or more, move queries and keys together. Then the roomy rows, whose
    queries have room, move queries alone.
    """

    def __init__(self, target: Target, width: int) -> None:
        full = target.real.sum(1) >= width
        self.full, self.roomy = full.nonzero()[:, 0], (~full).nonzero()[:, 0]
        self.of_full, self.of_roomy = _some(target, self.full), _some(target, self.roomy)

    def onto_ratios(self, queries: QueryTensor, keys: KeyTensor, *, rounds: int, iterations: int) -> Pair:
        """Return nearby queries and keys with exact ratios in roomy rows, and nearly exact ones in full rows."""
        precision = queries.dtype
        queries, keys = queries.double(), keys.double()  # conjugate gradients do not converge in float32
        of_full = queries[self.full]
        for _ in range(rounds):
            to_queries, to_keys = _smallest_step(of_full, keys, self.of_full, iterations)
            of_full, keys = of_full + to_queries, keys + to_keys
        answer = queries.clone()
        answer[self.full] = of_full
        keys = keys.to(precision)  # then the queries of roomy rows are moved once more to remove the effect of rounding
        answer[self.roomy] = onto_ratios(queries[self.roomy], keys.double(), self.of_roomy)
        return answer.to(precision), keys


def _some(target: Target, rows: Int[Tensor, " some"]) -> Target:
    """Return these rows with as many slots as the fullest of them needs. Slots in use come first."""
    most = int(target.real[rows].sum(1).max()) if len(rows) else 1
    logs = target.log_weights[rows, :most].double()
    return Target(target.support[rows, :most], logs, target.real[rows, :most], False)


def ratio_residuals(queries: QueryTensor, keys: KeyTensor, target: Target) -> Float[Tensor, "row k"]:
    """Return C t: logit minus log weight of every support entry, with the mean of its row subtracted."""
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
        if not curvature > 0:  # no step has any effect
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
