"""How far to turn a query up: the smallest scale at which its row leaks no more than asked.

A query found on fixed keys is base + s * direction, where `base` gives the row its ratios and `direction` has the same
product with every key of the support, so that ratios stay whatever s is. The log-odds of the leak,

    g(s) = lse over j not in S of (base + s direction) . k_j  -  lse over j in S of the same,

is then convex in s: the first term is convex, the second linear. From s = 0, Newton's method on a convex function
climbs down to the smallest s with g(s) <= goal without ever passing it. If there is none, g has its minimum where its
slope changes sign, and that s is the best the direction can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.heads.accuracy import Accuracy, Dtype
from attnscope.heads.certificate import rounding_of_one
from attnscope.heads.head import Rows
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.many_rows import Equations, beside

# How far to go along a direction: the smallest scale at which a row's whole margin is there.
#
# A query base + s z, with E base = e and E z = 0 the row's equations, has the row's ratios whatever s is. With
# n_j = k_0 - k_j it keeps key j a margin M below the support as soon as
#
#     n_j . base + s n_j . z  >=  M + ln A_0,  so  s = max over visible j not in S of (M + ln A_0 - n_j . base) / n_j . z
#
# if every n_j . z that is needed is positive. Where one is not, there is no such s and the answer is worth nothing,
# which the check afterwards finds. All visible zeros of a row together then have at most
#
#     n e^-M  =  leak / (1 + e1)   of the support's mass      for      M = ln(n / leak) + ln(1 + e1):
#
# no exponential is needed to know it, and the last term is what rounding may take away where ratios survive it.


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


_BLOCK_ELEMENTS = 2**20
_ROUNDS = 60
_CLOSE = 1e-3  # of the goal in log-odds, and of a scale: a thousandth of the leak asked for

BORNE: dict[Dtype, float] = {"bfloat16": 60.0, "float16": 500.0}
"""Query norms (for unit keys) beyond which the rounding of queries alone spoils the ratios in half precision."""
PRODUCTS = 0.6  # sum |q_c k_c| is about so much of |q| |k|, which bounds it


def borne(accuracy: Accuracy, width: int) -> float:
    """The query norm (for unit keys) from which on rounding alone can spoil the ratios of a row: what it can do to two
    support logits together reaches ln(1 + ratio error)."""
    known = BORNE.get(accuracy.dtype)
    return known or np.log1p(accuracy.ratio_error) / (2 * PRODUCTS * rounding_of_one(accuracy.dtype, width))


@dataclass(frozen=True, eq=False)
class Settled:
    """The queries, the log-odds of their leak, and whether the goal was met, row by row."""

    queries: Float[np.ndarray, "row width"]
    log_odds: Float[np.ndarray, " row"]
    met: Bool[np.ndarray, " row"]


def settled(
    base: Float[np.ndarray, "row width"],
    direction: Float[np.ndarray, "row width"],
    keys: Float[np.ndarray, "key width"],
    pattern: Pattern,
    accuracy: Accuracy,
    rows: Int[np.ndarray, " row"] | None = None,
) -> Settled:
    """base + s * direction for the smallest s >= 0 that leaks half of what is asked, so that rounding has room."""
    rows = np.arange(pattern.n) if rows is None else rows
    support, _, real = pattern.padded()
    goal = float(np.log(accuracy.leak / 2) - np.log1p(-accuracy.leak / 2))
    size = np.sqrt(np.einsum("rd,rd->r", direction, direction))
    highest = borne(accuracy, keys.shape[1]) / np.maximum(size, 1e-300)
    scale, log_odds = np.zeros(len(rows)), np.zeros(len(rows))
    step = max(1, _BLOCK_ELEMENTS // pattern.n_keys)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        chosen = rows[part]
        row = _Row.of(base[part] @ keys.T, direction[part] @ keys.T, support[chosen], real[chosen], chosen, pattern)
        scale[part], log_odds[part] = _smallest_scale(row, goal, highest[part])
    return Settled(base + scale[:, None] * direction, log_odds, log_odds <= goal + _CLOSE)


@dataclass(frozen=True, eq=False)
class _Row:
    """Logits of base and direction off the support (-inf and 0 where hidden), and on it (likewise where padded)."""

    base_off: Float[np.ndarray, "row key"]
    slope_off: Float[np.ndarray, "row key"]
    base_on: Float[np.ndarray, "row k"]
    slope_on: Float[np.ndarray, "row k"]

    @classmethod
    def of(
        cls,
        base: np.ndarray,
        slope: np.ndarray,
        support: np.ndarray,
        real: np.ndarray,
        rows: np.ndarray,
        pattern: Pattern,
    ) -> _Row:
        here = np.arange(len(rows))[:, None]
        base_on, slope_on = np.where(real, base[here, support], -np.inf), np.where(real, slope[here, support], 0)
        base[here, support], slope[here, support] = -np.inf, 0
        if pattern.causal:
            hidden = np.arange(pattern.n_keys) > rows[:, None]
            base[hidden], slope[hidden] = -np.inf, 0
        return cls(base, slope, base_on, slope_on)

    def __getitem__(self, some: np.ndarray) -> _Row:
        return _Row(self.base_off[some], self.slope_off[some], self.base_on[some], self.slope_on[some])

    def log_odds(self, scale: Float[np.ndarray, " row"]) -> tuple[np.ndarray, np.ndarray]:
        """g(s) and g'(s)."""
        off, off_slope = _lse(self.base_off + scale[:, None] * self.slope_off, self.slope_off)
        on, on_slope = _lse(self.base_on + scale[:, None] * self.slope_on, self.slope_on)
        return off - on, off_slope - on_slope


def _lse(logits: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    peak = logits.max(1)
    floor = np.where(np.isfinite(peak), peak, 0)
    logits -= floor[:, None]
    shares = np.exp(np.maximum(logits, -700), out=logits)
    # A row that sees nothing off its support has peak -inf: its leak is nothing, whatever the scale.
    total = np.where(np.isfinite(peak), shares.sum(1), 1)
    return np.log(total) + peak, np.einsum("rk,rk->r", shares, slopes) / total


def _smallest_scale(row: _Row, goal: float, highest: Float[np.ndarray, " row"]) -> tuple[np.ndarray, np.ndarray]:
    """The smallest s with g(s) <= goal, or the s with the smallest g, and g there."""
    low, high = np.zeros(len(highest)), highest.copy()  # what is sought lies between
    best_scale = np.zeros(len(highest))
    best, slope = row.log_odds(best_scale)
    alive = np.flatnonzero((best > goal) & (slope < 0))
    here, now, odds, slope = row[alive], best_scale[alive], best[alive], slope[alive]
    for _ in range(_ROUNDS):
        if not len(alive):
            break
        falls = slope < 0
        low[alive] = np.where(falls, now, low[alive])
        high[alive] = np.where(falls, high[alive], now)
        newton = now + (odds - goal) / np.where(falls, -slope, 1)
        # Newton's step where g falls and the step stays inside what is left; else halve what is left.
        now = np.where(falls & (newton < high[alive]), newton, 0.5 * (low[alive] + high[alive]))
        odds, slope = here.log_odds(now)
        better = odds < best[alive]
        best_scale[alive] = np.where(better, now, best_scale[alive])
        best[alive] = np.minimum(odds, best[alive])
        going = (odds > goal + _CLOSE) & (high[alive] - low[alive] > _CLOSE * high[alive])
        if not going.all():
            alive, here, now, odds, slope = alive[going], here[going], now[going], odds[going], slope[going]
    return best_scale, best
