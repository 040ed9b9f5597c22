"""How far to go along a direction: the smallest scale at which a row's whole margin is there.

A query base + s z, with E base = e and E z = 0 the row's equations, has the row's ratios whatever s is. With
n_j = k_0 - k_j it keeps key j a margin M below the support as soon as

    n_j . base + s n_j . z  >=  M + ln A_0,  so  s = max over visible j not in S of (M + ln A_0 - n_j . base) / n_j . z

if every n_j . z that is needed is positive. Where one is not, there is no such s and the answer is worth nothing, which
the check afterwards finds. All visible zeros of a row together then have at most

    n e^-M  =  leak / (1 + e1)   of the support's mass      for      M = ln(n / leak) + ln(1 + e1):

no exponential is needed to know it, and the last term is what rounding may take away where ratios survive it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.rows import Rows
from attnscope.solvers.many_rows import Equations, beside


def whole_margin(n_keys: int, accuracy: Accuracy) -> float:
    """M above."""
    return math.log(n_keys / accuracy.leak) + math.log1p(accuracy.ratio_error)


def lifted(
    solved: Equations,
    direction: Float[Tensor, "row width"],
    keys: Float[Tensor, "key width"],
    rows: Rows,
    margin: float,
) -> Float[Tensor, "row width"]:
    """base + s z, z projected off the equations first."""
    direction = solved.off(direction)
    reference = keys[rows.support[:, 0]]
    across = torch.nn.functional.pad(keys.T, (0, 0, 0, 1), value=1.0)
    needed = beside(solved.base, reference)
    needed[:, -1] += margin + rows.logs[:, 0]
    needed, gained = needed @ across, beside(-direction, reference) @ across
    rows.hide(needed, -1.0)
    rows.hide(gained, 1.0)
    scale = needed.div_(gained).amax(1).clamp_(min=0)
    return solved.base + scale[:, None] * direction
