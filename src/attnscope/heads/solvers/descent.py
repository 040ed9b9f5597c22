"""Descent on a pattern: the slope of a leak with respect to queries and keys, in one fused pass over blocks of rows.

For row i with support S write s_j = q . k_j for its logits and L = lse(s on S). With

    e_j = exp(s_j - L)   off the support,        U = sum of e_j,        z = U / (1 + U)

z is the leak of the row: the share of its attention that falls on zeros. The height that is gone down is

    sum over rows of  urgency h(ln U)  +  stiffness / 2 * sum over S of (r_j - mean r)^2,      r_j = s_j - ln A_ij

where h' = z / (z + forgiven): a row that leaks much is pulled with force 1 however much it leaks (so hopeless rows do
not fall silent, as they would if z itself were minimised), and a row that leaks far less than `forgiven` is left alone.
`urgency` weighs the rows: keys listen more to rows that have failed for long.

The slope with respect to the logits, by the chain rule through ln U = ln sum exp(s off S) - lse(s on S):

    off the support    a e_j,       a = urgency h' / U = urgency / ((z + forgiven) (1 + U))
    on the support     -a U softmax(s on S)_j + stiffness (r_j - mean r)

Both are written over the block of e (divided by a, which is put back on the thin side of the products), so a block is
touched by one product, one exp and two products: d/dq = ds K and d/dk = ds^T q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.heads.pattern import Pattern

BLOCK_ELEMENTS = 2**19  # numbers of one block: 2 MB in float32, which stays in the cache between the products
# e^30 squared and summed over any row still fits single precision; e^-50 weighs nothing, and numbers so small that they
# are stored without a leading digit (below e^-87) would make the products ten times slower.
EXPONENTS = (-50.0, 30.0)


@dataclass(frozen=True, eq=False)
class Target:
    """A pattern as tensors: one rectangle of `k` places per row, of which `real` ones count."""

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
    """Where the height falls, and the leak of every row at this place."""

    queries: Float[Tensor, "row width"]
    keys: Float[Tensor, "key width"]
    leaks: Float[Tensor, " row"]


def slopes(
    queries: Float[Tensor, "row width"],
    keys: Float[Tensor, "key width"],
    target: Target,
    urgency: Float[Tensor, " row"],
    *,
    forgiven: float,
    stiffness: float,
) -> Slopes:
    """The gradient of the height above, and the leaks; memory is one block whatever the size of the pattern."""
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


def onto_ratios(
    queries: Float[Tensor, "row width"], keys: Float[Tensor, "key width"], target: Target
) -> Float[Tensor, "row width"]:
    """`ratios.with_exact_ratios` for every step of a descent: normal equations in float64 instead of a pseudo-inverse.

    A ridge of 1e-12 of the mean square stands in for the rank decision, so rows that have no exact solution (more
    support keys than width + 1) get a nearly least-squares one.
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
    """Adam (arXiv:1412.6980) on one tensor in place, without the bookkeeping of an optimiser for whole models."""

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
