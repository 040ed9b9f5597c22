"""The certificate: how well a head realises a pattern, recomputed from its tensors alone, in blocks of rows.

For row i with support S, logits s of the stored numbers (the mask applied), and r the bound on the rounding of each
logit, in whatever order a machine sums:

    ratio error = max over j, j' in S of (e^s_j / A_ij) / (e^s_j' / A_ij') - 1, each s anywhere within its r
               <= exp(max (t + r) - min (t - r)) - 1,   t_j = s_j - ln A_ij          (0 for a row of one key)
    leak        = sum over j not in S of softmax(s)_j <= sigmoid(lse(s + r off S) - lse(s - r on S))

So a certified head has the accuracy in exact arithmetic, to which lower bounds refer, and on every machine that
sums products in the stated precision. No head passes because two different logits fall on one rounded number. Memory is
`BLOCK_ELEMENTS` numbers, never n x n. A number that is not finite never passes.

The bound on rounding. Covered are products q_c k_c summed in any order (or fused) in numbers of unit roundoff u, the
sum multiplied by the scale afterwards; u = 2^-24 for heads in float32 and in half precision, which is accumulated in
float32, and 2^-53 for float64. The d products and d - 1 sums round d times at most on every way from a product to the
result, the scale once more, so with gamma_m = m u / (1 - m u) (N. Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1)

    |fl(s_j) - s_j|  <=  gamma_(d+1) scale sum_c |q_c k_c|.                                                     (1)

Where nothing rounds. If all products of a row are whole multiples of one number g, a power of two, then so are all
partial sums; while sum_c |q_c k_c| <= g / u they are numbers of at most as many bits as the format has, hence exact in
every order, and only the scale rounds:

    |fl(s_j) - s_j|  <=  u |s_j|.                                                                               (2)

The scale 1 / sqrt(d) is itself rounded, by a factor 1 + delta that all logits share, |delta| <= u. softmax does not see
the constant delta s_peak, so this costs u |s_j - s_peak|. A scale that is a power of two (d = 1, 4, 16, 64, ...) rounds
nothing: gamma_d in (1), 0 in (2), and no delta. The logits here are computed too, in float64: (1) or (2) with u = 2^-53
is added for them. Products of first-order errors are covered by adding a millionth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy, Dtype, precision
from attnscope.heads.facts import Certificate
from attnscope.heads.head import Head, KeyTensor, QueryTensor
from attnscope.heads.pattern import Pattern

UNITS: dict[Dtype, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-24, "float16": 2.0**-24}
"""Unit roundoff of the sums of products: half precision is accumulated in float32."""
HERE = UNITS["float64"]
MILLIONTH = 1 + 1e-6
BLOCK_ELEMENTS = 2**22  # numbers in one block of logits: 32 MB in float64
NAMED_ROWS = 20


def gamma(roundings: int, unit: float) -> float:
    """Return gamma_m = m u / (1 - m u), which bounds (1 + u)^m - 1 for m roundings of unit u."""
    return roundings * unit / (1 - roundings * unit)


def rounding_of_one(dtype: Dtype, width: int) -> float:
    """Return a bound on the rounding of a logit with sum |q_c k_c| = 1, for constructions that leave a margin.

    It includes (1) and the rounding of the query, but not the storage of queries and keys in half precision, whose
    error is larger than both and can have either sign.
    """
    return gamma(width + 2, UNITS[dtype]) + gamma(width + 1, HERE)


class Logits(NamedTuple):
    """Logits of the stored numbers, and a bound on the error of computing them."""

    exact: Float[Tensor, "row key"]
    slack: Float[Tensor, "row key"]


def logits_and_slack(queries: QueryTensor, keys: KeyTensor, scale: float, unit: float) -> Logits:
    """Return logits with the error bound (1), or (2) for rows that fulfil its condition (`of_the_scale` is not
    included).
    """
    scaling = int(_rounds(scale))
    rounds = queries.shape[1] + scaling
    queries, keys = queries.double(), keys.double()
    exact = queries @ keys.T * scale
    slack = queries.abs() @ keys.abs().T
    whole = slack.amax(1) <= step_of(queries, keys) / unit
    slack *= scale * (gamma(rounds, unit) + gamma(rounds, HERE)) * MILLIONTH
    if whole.any():
        slack[whole] = scaling * (unit + HERE) * MILLIONTH * exact[whole].abs()
    return Logits(exact, slack)


def of_the_scale(below: Float[Tensor, "*entry"], scale: float, unit: float) -> Float[Tensor, "*entry"]:
    """Bound the effect of rounding the scale on logits this far below the peak; 0 for hidden logits (-inf)."""
    if not _rounds(scale):
        return torch.zeros_like(below)
    return unit * MILLIONTH * below.abs().masked_fill(below == -torch.inf, 0)


def _rounds(scale: float) -> bool:
    return math.frexp(scale)[0] != 0.5


def step_of(queries: QueryTensor, keys: KeyTensor) -> Float[Tensor, " row"]:
    """Return the largest power of two that divides every product of a row; infinite for a query of zeros."""
    column = lowest_bit(keys).amin(0)
    steps = lowest_bit(queries) * torch.where(column.isinf(), 1.0, column)
    # A column of zeros adds nothing, whatever the query has there.
    return steps.masked_fill(column.isinf(), torch.inf).amin(1)


def lowest_bit(values: Float[Tensor, "*entry"]) -> Float[Tensor, "*entry"]:
    """Return the largest power of two that divides each number; infinite for 0, infinities and NaN."""
    mantissa, exponent = torch.frexp(values.double())
    whole = (mantissa * 2.0**53).to(torch.int64)
    power = torch.ldexp((whole & -whole).double(), exponent - 53)
    return torch.where((values == 0) | ~values.isfinite(), torch.inf, power)


@torch.no_grad()
def certify(head: Head, pattern: Pattern, accuracy: Accuracy) -> Certificate:
    """Recompute the attention of the head and compare it with the pattern, row by row."""
    if (head.n, len(head.keys)) != (pattern.n, pattern.n_keys):
        raise RefusalError(
            f"The head has {head.n} queries and {len(head.keys)} keys, the pattern {pattern.n} x {pattern.n_keys}: "
            "they do not belong together."
        )
    columns = zip(*_blocks(head, pattern), strict=True)
    ratio, leak, zero_ratio, max_logit, slack = (torch.cat(parts) for parts in columns)
    bad = ~_good(ratio, leak, accuracy)
    return Certificate(
        n=pattern.n,
        k=pattern.k,
        d=head.width,
        dtype=head.dtype,
        causal=head.causal,
        ratio_error=_worst(ratio),
        mean_ratio_error=float(_infinite(ratio).mean()),
        leak=_worst(leak),
        mean_leak=float(_infinite(leak).mean()),
        zero_ratio=_worst(zero_ratio),
        max_logit=_worst(max_logit),
        rounding=_worst(slack),
        query_norm=_worst(head.queries.double().norm(dim=1)),
        key_norm=_worst(head.keys.double().norm(dim=1)),
        asked_ratio_error=accuracy.ratio_error,
        asked_leak=accuracy.leak,
        failing=int(bad.sum()),
        failing_rows=tuple(bad.nonzero().flatten().tolist()[:NAMED_ROWS]),
    )


@torch.no_grad()
def certified_rows(head: Head, pattern: Pattern, accuracy: Accuracy) -> Bool[Tensor, " row"]:
    """Return which rows are accurate enough. The head is certified if all are."""
    return torch.cat([_good(block[0], block[1], accuracy) for block in _blocks(head, pattern)])


def _good(ratio: Tensor, leak: Tensor, accuracy: Accuracy) -> Tensor:
    return (ratio <= accuracy.ratio_error) & (leak <= accuracy.leak)  # NaN compares false, so such a row fails


def _blocks(head: Head, pattern: Pattern) -> Iterator[tuple[Tensor, ...]]:
    step = max(1, BLOCK_ELEMENTS // pattern.n_keys)
    for first in range(0, pattern.n, step):
        yield _block(head, pattern, first, min(first + step, pattern.n))


def _block(head: Head, pattern: Pattern, first: int, last: int) -> tuple[Tensor, ...]:
    """Return ratio error, leak, e2, largest logit, and largest slack on the support, row by row."""
    unit = UNITS[precision(head.dtype)]
    logits, slack = logits_and_slack(head.queries[first:last], head.keys, head.scale, unit)
    size = last - first
    max_logit = logits.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    if head.causal:
        hidden = torch.arange(len(head.keys)) > torch.arange(first, last)[:, None]
        max_logit.masked_fill_(hidden, 0)
        logits.masked_fill_(hidden, -torch.inf)
    entries = slice(int(pattern.starts[first]), int(pattern.starts[last]))
    rows, columns = torch.from_numpy(pattern.rows[entries] - first), torch.from_numpy(pattern.columns[entries])

    def by_row(values: Tensor, how: str) -> Tensor:
        start = torch.full((size,), -torch.inf if how == "amax" else torch.inf, dtype=torch.float64)
        return start.scatter_reduce(0, rows, values, how, include_self=True)

    on = logits[rows, columns]
    peak = by_row(on, "amax")
    on_slack = slack[rows, columns] + of_the_scale(on - peak[rows], head.scale, unit)
    residual = on - torch.from_numpy(pattern.weights[entries]).log()
    ratio = torch.expm1(by_row(residual + on_slack, "amax") - by_row(residual - on_slack, "amin"))
    ratio[torch.from_numpy(pattern.counts[first:last] == 1) & ratio.isfinite()] = 0
    on_lse = torch.zeros(size, dtype=torch.float64).scatter_add(0, rows, (on - on_slack - peak[rows]).exp()).log()
    logits -= peak[:, None]  # from here on, logits are relative to the peak, as in softmax
    slack += of_the_scale(logits, head.scale, unit)
    logits += slack
    logits[rows, columns] = -torch.inf
    off_lse = logits.logsumexp(-1)
    zero_ratio = (logits.amax(-1) + peak - by_row(on - on_slack, "amin")).exp()
    return ratio, torch.sigmoid(off_lse - on_lse), zero_ratio, max_logit.amax(-1), by_row(on_slack, "amax")


def _worst(values: Tensor) -> float:
    return float(_infinite(values).max())


def _infinite(values: Tensor) -> Tensor:
    """Replace NaN by infinity, so that a maximum or a mean cannot hide it."""
    return values.nan_to_num(nan=torch.inf, posinf=torch.inf)
