"""Queries of largest margin on fixed keys: for every row the quadratic program

    min |q|^2   such that   k_s . q - ln A_s = c  for s in S,      k_j . q <= c - M  for visible j not in S,   c free.

Taking the first support key as reference removes c: (k_s - k_0) . q = ln A_s - ln A_0 are equations E q = e, and (k_0 -
k_j) . q >= M + ln A_0 are half-spaces. The program has a solution exactly when S is a face of the polytope of the
visible keys. It is solved for many rows at once by the dual method of Goldfarb and Idnani (1983), with identity
Hessian: begin at the smallest solution of the equations; take in the worst violated half-space, moving along the part
of its normal that the active ones do not span; where a multiplier would turn negative on the way, drop that half-space
first. |q| only grows, so it bounds the optimum from below at every step, and an unbounded step proves that the row has
no solution. Each row keeps the inverse Gram matrix of its active normals, updated by rank one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import KeyArray, QueryArray
from attnscope.heads.pattern import Pattern

Status = Literal["separated", "inseparable", "too long", "stopped"]
STATUSES: tuple[Status, ...] = ("separated", "inseparable", "too long", "stopped")
_SEPARATED, _INSEPARABLE, _TOO_LONG, _STOPPED, _RUNNING = range(5)

_STATE_BYTES = 2**25  # size of one batch of rows: normals and inverse Gram matrices stay in cache
_VIOLATION = 1e-9  # a half-space violated by less than this share of the margin counts as met
_DEPENDENT = 1e-20  # a rest below this share of a normal's squared length is rounding
_STEPS_PER_WIDTH = 40


@dataclass(frozen=True, eq=False)
class Separation:
    """Solutions row by row, and their proof: q - base = sum of multipliers * (k_0 - k_active), projected off E.

    `active` holds key numbers (-1 for an empty place). `base` is the smallest query with the row's ratios.
    """

    queries: QueryArray
    base: QueryArray
    status: Int[np.ndarray, " row"]
    active: Int[np.ndarray, "row place"]
    multipliers: Float[np.ndarray, "row place"]
    steps: int

    def count(self, status: Status) -> int:
        return int((self.status == STATUSES.index(status)).sum())


def separated(pattern: Pattern, keys: KeyArray, margin: float, longest: float, advance: Advance = silent) -> Separation:
    """Return the smallest queries with exact ratios and this margin (in logits). A row stops if its query grows beyond
    `longest`.
    """
    width = keys.shape[1]
    batch = int(np.clip(_STATE_BYTES // (16 * (width + 1) ** 2), 64, 1024))
    done = []
    for first in range(0, pattern.n, batch):
        advance("queries", first, pattern.n)
        rows = np.arange(first, min(first + batch, pattern.n))
        done.append(_Batch(pattern, keys, rows, margin, longest).solve())
    advance("queries", pattern.n, pattern.n)
    names = ("queries", "base", "status", "active", "multipliers")
    arrays = {name: np.concatenate([getattr(part, name) for part in done]) for name in names}
    return Separation(**arrays, steps=max(part.steps for part in done))


class _Batch:
    """Rows solved in lockstep: in every step all of them move once, and finished rows are removed."""

    def __init__(self, pattern: Pattern, keys: np.ndarray, rows: np.ndarray, margin: float, longest: float) -> None:
        support, weights, real = pattern.padded()
        support, logs, real = support[rows], np.log(weights[rows]), real[rows]
        n, width = keys.shape
        self.keys, self.longest, self.margin = keys, longest, margin
        self.reference = keys[support[:, 0]]
        self.offset = margin + logs[:, 0]
        self.spanned, self.base = _equations(keys, support, logs, real)
        self.hidden = np.zeros((len(rows), n))
        self.hidden[np.arange(len(rows))[:, None], support] = -np.inf
        if pattern.causal:
            self.hidden[np.arange(n) > rows[:, None]] = -np.inf
        places = width + 1
        self.row = np.arange(len(rows))
        self.query = self.base.copy()
        self.normals = np.zeros((len(rows), places, width))
        self.inverse = np.zeros((len(rows), places, places))
        self.multipliers = np.zeros((len(rows), places))
        self.active = np.full((len(rows), places), -1)
        self.entering = np.full(len(rows), -1)
        self.entering_normal = np.zeros((len(rows), width))
        self.entering_multiplier = np.zeros(len(rows))
        self.status = np.full(len(rows), _RUNNING)
        stopped = np.full(len(rows), _STOPPED)
        self.answer = Separation(self.query.copy(), self.base, stopped, self.active.copy(), self.multipliers.copy(), 0)

    def solve(self) -> Separation:
        steps = 0
        while steps < _STEPS_PER_WIDTH * self.keys.shape[1] + 100:
            self._choose()
            self._retire()
            if not len(self.row):
                break
            self._move()
            steps += 1
        self._retire(everyone=True)
        return replace(self.answer, steps=steps)

    def _choose(self) -> None:
        """Let rows without an entering half-space take the one they violate most; rows that violate none are done."""
        free = np.flatnonzero((self.entering < 0) & (self.status == _RUNNING))
        if not len(free):
            return
        query, reference = self.query[free], self.reference[free]
        violation = query @ self.keys.T
        violation += self.hidden[free]
        index, taken = np.nonzero(self.active[free] >= 0)
        violation[index, self.active[free][index, taken]] = -np.inf
        worst = violation.argmax(1)
        amount = violation[np.arange(len(free)), worst] + self.offset[free] - np.einsum("rd,rd->r", query, reference)
        met = ~(amount > _VIOLATION * self.margin)
        self.status[free[met]] = _SEPARATED
        free, worst = free[~met], worst[~met]
        normal = self.reference[free] - self.keys[worst]
        for _ in range(2):  # twice is enough to be orthogonal to the equations
            normal -= _combined(self.spanned[free], _products(self.spanned[free], normal))
        self.entering[free], self.entering_normal[free], self.entering_multiplier[free] = worst, normal, 0

    def _retire(self, everyone: bool = False) -> None:
        """Store and remove finished rows, once there are enough of them to justify the copying."""
        done = self.status != _RUNNING
        if not everyone and done.sum() * 8 < len(done) and not done.all():
            return
        leave = np.flatnonzero(done | everyone)
        rows, status = self.row[leave], self.status[leave]
        self.answer.queries[rows] = self.query[leave]
        self.answer.status[rows] = np.where(status == _RUNNING, _STOPPED, status)
        self.answer.active[rows] = self.active[leave]
        self.answer.multipliers[rows] = self.multipliers[leave]
        stay = ~done & (not everyone)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and name not in ("keys", "base"):
                setattr(self, name, value[stay])

    def _move(self) -> None:
        """Do one step of Goldfarb and Idnani for every row: full (add the half-space) or partial (drop another)."""
        every = np.arange(len(self.row))
        normal = self.entering_normal
        weights = _products(self.inverse, _products(self.normals, normal))
        rest = normal - _combined(self.normals, weights)
        correction = _products(self.inverse, _products(self.normals, rest))  # one round of refinement
        weights += correction
        rest -= _combined(self.normals, correction)
        size, length = np.einsum("rd,rd->r", rest, rest), np.einsum("rd,rd->r", normal, normal)
        key = self.reference - self.keys[np.maximum(self.entering, 0)]
        violation = self.offset - np.einsum("rd,rd->r", key, self.query)
        dependent = size <= _DEPENDENT * length
        with np.errstate(divide="ignore", invalid="ignore"):
            full = np.where(dependent, np.inf, violation / size)
            ratio = np.where((self.active >= 0) & (weights > 0), self.multipliers / weights, np.inf)
        leaving = ratio.argmin(1)
        partial = ratio[every, leaving]
        step = np.minimum(full, partial)
        running = self.status == _RUNNING
        endless = running & ~np.isfinite(step)
        self.status[endless] = _INSEPARABLE
        going = running & ~endless
        step = np.where(going, step, 0)
        self.query += np.where(dependent, 0, step)[:, None] * rest
        self.multipliers -= step[:, None] * weights
        self.entering_multiplier += step
        self._take_in(np.flatnonzero(going & (full <= partial)), weights, size)
        self._drop(np.flatnonzero(going & (full > partial)), leaving)
        self.status[going & (np.einsum("rd,rd->r", self.query, self.query) > self.longest**2)] = _TOO_LONG

    def _take_in(self, rows: np.ndarray, weights: np.ndarray, size: np.ndarray) -> None:
        """Border the inverse Gram matrix: with w the weights and s the squared length of the rest, add (w, -1)(w, -1)^T
        / s.
        """
        place = (self.active[rows] < 0).argmax(1)
        border = weights[rows]
        border[np.arange(len(rows)), place] = -1
        self.inverse[rows] += border[:, :, None] * (border / size[rows, None])[:, None, :]
        self.normals[rows, place] = self.entering_normal[rows]
        self.multipliers[rows, place] = self.entering_multiplier[rows]
        self.active[rows, place] = self.entering[rows]
        self.entering[rows] = -1

    def _drop(self, rows: np.ndarray, leaving: np.ndarray) -> None:
        """Remove normal l from the inverse Gram matrix: subtract g g^T / g_l, g its column l, and clear the place."""
        place = leaving[rows]
        column = self.inverse[rows, :, place]
        pivot = column[np.arange(len(rows)), place]
        self.inverse[rows] -= column[:, :, None] * (column / pivot[:, None])[:, None, :]
        self.inverse[rows, place, :] = 0
        self.inverse[rows, :, place] = 0
        self.normals[rows, place] = 0
        self.multipliers[rows, place] = 0
        self.active[rows, place] = -1


def _equations(
    keys: np.ndarray, support: np.ndarray, logs: np.ndarray, real: np.ndarray
) -> tuple[Float[np.ndarray, "row equation width"], Float[np.ndarray, "row width"]]:
    """Return an orthonormal basis of the span of E, padded with zero rows, and the smallest solution of E q = e."""
    differences = (keys[support[:, 1:]] - keys[support[:, :1]]) * real[:, 1:, None]
    wanted = (logs[:, 1:] - logs[:, :1]) * real[:, 1:]
    if not differences.shape[1]:
        return differences, np.zeros((len(support), keys.shape[1]))
    left, sizes, right = np.linalg.svd(differences, full_matrices=False)
    solid = sizes > 1e-13 * sizes[:, :1]
    inner = np.where(solid, np.einsum("rej,re->rj", left, wanted) / np.where(solid, sizes, 1), 0)
    return right * solid[:, :, None], np.einsum("rj,rjd->rd", inner, right)


def _products(matrices: Float[np.ndarray, "row m d"], vectors: Float[np.ndarray, "row d"]) -> np.ndarray:
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])


def _combined(matrices: Float[np.ndarray, "row m d"], weights: Float[np.ndarray, "row m"]) -> np.ndarray:
    return np.asarray((weights[:, None, :] @ matrices)[:, 0])
