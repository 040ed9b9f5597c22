"""Queries on fixed keys by interpolation, and how far to scale a query up.

Interpolation. With K_S the support's keys as rows, the smallest solution of K_S q = c + ln A_S is

    q(c) = K_S^+ ln A_S  +  c K_S^+ 1,

so that the row has its ratios at once, and the offset c, which softmax does not see on the support, is free to be as
large as the leak onto the other keys requires. On keys of coherence mu another key receives at most
c k mu / (1 - (k - 1) mu) (Gershgorin), which stays below c when mu < 1 / (2k - 1): low coherence is all this needs.

Settling. A query found on fixed keys is base + s * direction, where `base` gives the row its ratios and `direction` has
the same product with every key of the support, so that ratios stay whatever s is. The log-odds of the leak,

    g(s) = lse over j not in S of (base + s direction) . k_j  -  lse over j in S of the same,

is then convex in s: the first term is convex, the second linear. From s = 0, Newton's method on a convex function
approaches the smallest s with g(s) <= goal without passing it. If there is none, g has its minimum where its slope
changes sign, and that s is the best for this direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from attnscope.heads.accuracy import Accuracy, Dtype, Factors, KeyArray, QueryArray, with_exact_ratios
from attnscope.heads.certificate import rounding_of_one
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.keys import Keys

NAMED_ROWS = 20
PRODUCTS = 0.6  # sum |q_c k_c| is about this share of |q| |k|, which bounds it
BORNE: dict[Dtype, float] = {"bfloat16": 60.0, "float16": 500.0}
"""Query norms (for unit keys) beyond which the rounding of queries alone spoils the ratios in half precision."""
_ROWS_AT_ONCE = 4096
_INEXACT = 1e-11
_BLOCK_ELEMENTS = 2**20
_ROUNDS = 60
_CLOSE = 1e-3  # tolerance in log-odds and relative tolerance of a scale: a thousandth of the leak


def interpolated(pattern: Pattern, keys: Keys, accuracy: Accuracy) -> Factors:
    """Return factors on these keys: exact ratios, and in every row the smallest offset that leaks little enough."""
    base, direction = interpolation(pattern, keys.array, np.arange(pattern.n))
    answer = settled(base, direction, keys.array, pattern, accuracy)
    queries = with_exact_ratios(answer.queries, keys.array, pattern)
    return Factors(queries, keys.array, {**keys.facts(), **leaking(~answer.met)})


def leaking(rows: np.ndarray) -> Mapping[str, Any]:
    """Return notes on the rows that leak too much at any scale: their number, and the first of them."""
    return {"leaking": int(rows.sum()), "leaking_rows": np.flatnonzero(rows)[:NAMED_ROWS].tolist()}


def interpolation(pattern: Pattern, keys: KeyArray, rows: Int[np.ndarray, " row"]) -> tuple[QueryArray, QueryArray]:
    """Return base K_S^+ ln A_S and direction K_S^+ 1 of these rows."""
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
    """Return K_S^T (K_S K_S^T)^-1 w for the right-hand sides w, by the k x k Gram matrix; by the SVD for rows whose
    keys are nearly dependent.
    """
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


def longest_query(accuracy: Accuracy, width: int) -> float:
    """Return the query norm (for unit keys) above which rounding alone can spoil the ratios of a row.

    At this norm the rounding errors of two support logits add up to ln(1 + ratio error).
    """
    known = BORNE.get(accuracy.dtype)
    return known or np.log1p(accuracy.ratio_error) / (2 * PRODUCTS * rounding_of_one(accuracy.dtype, width))


@dataclass(frozen=True, eq=False)
class Settled:
    """The queries, the log-odds of their leak, and whether the goal was met, row by row."""

    queries: QueryArray
    log_odds: Float[np.ndarray, " row"]
    met: Bool[np.ndarray, " row"]


def settled(
    base: QueryArray,
    direction: QueryArray,
    keys: KeyArray,
    pattern: Pattern,
    accuracy: Accuracy,
    rows: Int[np.ndarray, " row"] | None = None,
) -> Settled:
    """Return base + s * direction for the smallest s >= 0 with half the allowed leak, so that rounding has room."""
    rows = np.arange(pattern.n) if rows is None else rows
    support, _, real = pattern.padded()
    goal = float(np.log(accuracy.leak / 2) - np.log1p(-accuracy.leak / 2))
    size = np.sqrt(np.einsum("rd,rd->r", direction, direction))
    highest = longest_query(accuracy, keys.shape[1]) / np.maximum(size, 1e-300)
    scale, log_odds = np.zeros(len(rows)), np.zeros(len(rows))
    step = max(1, _BLOCK_ELEMENTS // pattern.n_keys)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        some = rows[part]
        here, on, there = np.arange(len(some))[:, None], support[some], real[some]
        base_off, slope_off = base[part] @ keys.T, direction[part] @ keys.T
        base_on, slope_on = np.where(there, base_off[here, on], -np.inf), np.where(there, slope_off[here, on], 0)
        base_off[here, on], slope_off[here, on] = -np.inf, 0
        if pattern.causal:
            hidden = np.arange(pattern.n_keys) > some[:, None]
            base_off[hidden], slope_off[hidden] = -np.inf, 0
        line = _Line(base_off, slope_off, base_on, slope_on)
        scale[part], log_odds[part] = _smallest_scale(line, goal, highest[part])
    return Settled(base + scale[:, None] * direction, log_odds, log_odds <= goal + _CLOSE)


@dataclass(frozen=True, eq=False)
class _Line:
    """Logits of base and direction in each row, off and on the support; -inf and 0 where hidden or padded."""

    base_off: Float[np.ndarray, "row key"]
    slope_off: Float[np.ndarray, "row key"]
    base_on: Float[np.ndarray, "row k"]
    slope_on: Float[np.ndarray, "row k"]

    def __getitem__(self, some: np.ndarray) -> _Line:
        return _Line(self.base_off[some], self.slope_off[some], self.base_on[some], self.slope_on[some])

    def log_odds(self, scale: Float[np.ndarray, " row"]) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-odds g(s) of the leak and its derivative g'(s)."""
        off, off_slope = _lse(self.base_off + scale[:, None] * self.slope_off, self.slope_off)
        on, on_slope = _lse(self.base_on + scale[:, None] * self.slope_on, self.slope_on)
        return off - on, off_slope - on_slope


def _lse(logits: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    peak = logits.max(1)
    floor = np.where(np.isfinite(peak), peak, 0)
    logits -= floor[:, None]
    shares = np.exp(np.maximum(logits, -700), out=logits)
    # A row that sees nothing off its support has peak -inf: it leaks nothing, whatever the scale.
    total = np.where(np.isfinite(peak), shares.sum(1), 1)
    return np.log(total) + peak, np.einsum("rk,rk->r", shares, slopes) / total


def _smallest_scale(line: _Line, goal: float, highest: Float[np.ndarray, " row"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest s with g(s) <= goal, else the s with the smallest g; also return g at that s."""
    low, high = np.zeros(len(highest)), highest.copy()  # the solution lies between
    best_scale = np.zeros(len(highest))
    best, slope = line.log_odds(best_scale)
    alive = np.flatnonzero((best > goal) & (slope < 0))
    here, now, odds, slope = line[alive], best_scale[alive], best[alive], slope[alive]
    for _ in range(_ROUNDS):
        if not len(alive):
            break
        falls = slope < 0
        low[alive] = np.where(falls, now, low[alive])
        high[alive] = np.where(falls, high[alive], now)
        newton = now + (odds - goal) / np.where(falls, -slope, 1)
        # Newton's step where g falls and the step stays inside the remaining interval; else halve the interval.
        now = np.where(falls & (newton < high[alive]), newton, 0.5 * (low[alive] + high[alive]))
        odds, slope = here.log_odds(now)
        better = odds < best[alive]
        best_scale[alive] = np.where(better, now, best_scale[alive])
        best[alive] = np.minimum(odds, best[alive])
        going = (odds > goal + _CLOSE) & (high[alive] - low[alive] > _CLOSE * high[alive])
        if not going.all():
            alive, here, now, odds, slope = alive[going], here[going], now[going], odds[going], slope[going]
    return best_scale, best
