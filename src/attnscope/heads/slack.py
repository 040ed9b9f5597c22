"""How far a logit may be off when a machine computes it: a bound on rounding for every order of summation.

A head stores numbers; what attends is softmax of logits that some kernel computes from them in some order. A
certificate that looked at one evaluation would pass heads by luck: logits that differ, and fall on one rounded number.
So it takes the logits of the stored numbers and, around each, the whole interval in which an evaluation can end.

What is covered: products q_c k_c summed in any order (or fused) in numbers of unit roundoff u, the sum multiplied by
the scale afterwards; u = 2^-24 for heads in float32 and in half precision, which is accumulated in float32, and 2^-53
for float64. The d products and d - 1 sums round d times at most on every way from a product to the result, the scale
once more, so with gamma_m = m u / (1 - m u) (N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1)

    |fl(s_j) - s_j|  <=  gamma_(d+1) scale sum_c |q_c k_c|.                                                     (1)

Where nothing rounds. If all products of a row are whole multiples of one number g, a power of two, then so are all
partial sums; while sum_c |q_c k_c| <= g / u they are numbers of at most as many bits as the format has, hence exact in
every order, and only the scale rounds:

    |fl(s_j) - s_j|  <=  u |s_j|.                                                                               (2)

The scale 1 / sqrt(d) is itself rounded, by a factor 1 + delta that all logits share, |delta| <= u. softmax does not see
the constant delta s_peak, so this costs u |s_j - s_peak|. A scale that is a power of two (d = 1, 4, 16, 64, ...) rounds
nothing: gamma_d in (1), 0 in (2), and no delta. And the logits here are computed, in float64: (1) or (2) with u = 2^-53
is added for them. Products of first order errors are paid by a millionth more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.heads.accuracy import Dtype

UNITS: dict[Dtype, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-24, "float16": 2.0**-24}
"""Unit roundoff of the sums of products: half precision is accumulated in float32."""
HERE = UNITS["float64"]
MILLIONTH = 1 + 1e-6


def gamma(roundings: int, unit: float) -> float:
    """(1 + unit)^m - 1 and its kin are at most this."""
    return roundings * unit / (1 - roundings * unit)


def rounding_of_one(dtype: Dtype, width: int) -> float:
    """What rounding can do to a logit with sum |q_c k_c| = 1, for constructions that leave room: (1), and the rounding
    of the query. Not that of half precision's own numbers, which is larger than both and not of one sign."""
    unit = UNITS[dtype]
    return gamma(width + 2, unit) + gamma(width + 1, HERE)


class Logits(NamedTuple):
    """Logits of the stored numbers, and how far from them an evaluation may end."""

    exact: Float[Tensor, "row key"]
    slack: Float[Tensor, "row key"]


def logits_and_slack(
    queries: Float[Tensor, "row width"], keys: Float[Tensor, "key width"], scale: float, unit: float
) -> Logits:
    """(1), or (2) for rows it holds for; what the scale's own rounding costs depends on the peak (`of_the_scale`)."""
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
    """What the rounding of the scale can do to entries so far from the peak; hidden ones are infinitely far: free."""
    if not _rounds(scale):
        return torch.zeros_like(below)
    return unit * MILLIONTH * below.abs().masked_fill(below == -torch.inf, 0)


def _rounds(scale: float) -> bool:
    return math.frexp(scale)[0] != 0.5


def step_of(queries: Float[Tensor, "row width"], keys: Float[Tensor, "key width"]) -> Float[Tensor, " row"]:
    """The largest power of two of which every product of a row is a whole multiple; infinite for a query of zeros."""
    column = lowest_bit(keys).amin(0)
    steps = lowest_bit(queries) * torch.where(column.isinf(), 1.0, column)
    # a column of zeros adds nothing, whatever the query has there
    return steps.masked_fill(column.isinf(), torch.inf).amin(1)


def lowest_bit(values: Float[Tensor, "*entry"]) -> Float[Tensor, "*entry"]:
    """The largest power of two that divides each number; infinite for 0 and for what is not finite."""
    mantissa, exponent = torch.frexp(values.double())
    whole = (mantissa * 2.0**53).to(torch.int64)
    power = torch.ldexp((whole & -whole).double(), exponent - 53)
    return torch.where((values == 0) | ~values.isfinite(), torch.inf, power)
