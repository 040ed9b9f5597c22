"""Queries of largest margin for rows of many patterns at once, on torch: a fast solver for the program of
`solvers.separation`.

Row by row the method is the same (Goldfarb and Idnani 1983); three things differ.

**One matrix per row.** With N the active normals, projected off the row's equations E, each row keeps T = [P; D],

    P = the projection off E and N,      D = (N N^T)^-1 N,       so that   T n = (rest, weights)   for an entering n:

the rest of n, along which the query moves, and the amounts by which the multipliers fall on the way. With s = |rest|^2,
taking n in at place p and dropping the normal of row d_l of D are both T <- T - c b^T:

    take in:  c = T n with -1 at p,  b = rest / s:       P - rest rest^T / s,  D - weights rest^T / s,  rest / s at p
    drop:     c = (-d_l, D d_l),     b = d_l / |d_l|^2:  P + d_l d_l^T / |d_l|^2,  and 0 in the place of d_l.

**The nearest violated half-space is taken, not the most violated one.** Half-spaces are ranked by violation / |n|^2, n
projected off E: keys close to the support have short normals and decide in the end. This halves the steps.

**No row waits for another.** Rows are worked on in lanes; a lane whose row is done takes the next row.

A row is done when z = q - base gives every half-space at least the share 1 - `violation` of the margin that base leaves
open. Such a z is dual feasible, so it is no longer than the best one, and scaled up to the whole margin (`lifted`) it
is longer by at most 1 / (1 - violation): that is the tolerance of the margin. Rounding errors in T cannot go unnoticed,
because `lifted` and the certificate start from the keys again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.head import KeyTensor, QueryTensor, Rows

VIOLATION = 0.1
_LANES = 1024
_REFILL = 16  # lanes are refilled when one in this many is idle
_DEPENDENT = 1e-18  # a rest of less than this squared length is rounding (keys are about 1 long)
_NEAREST = 1e-6  # at larger squared distances, nearer half-spaces are not preferred
_STEPS_PER_WIDTH = 20
_CELL = 16  # keys per cell: the largest number is found by cell, then inside the cell


@dataclass(frozen=True, eq=False)
class Equations:
    """An orthonormal basis of the span of a row's equations (zeros in unused slots), and their smallest solution."""

    basis: Float[Tensor, "row equation width"]
    base: QueryTensor
    sound: Bool[Tensor, " row"]

    def off(self, vectors: QueryTensor) -> QueryTensor:
        """Project vectors onto the orthogonal complement of the equations."""
        if not self.basis.shape[1]:
            return vectors
        return vectors - ((self.basis @ vectors[:, :, None]).mT @ self.basis)[:, 0]


def equations(keys: KeyTensor, rows: Rows) -> Equations:
    """Return the equations E q = e of every row: (k_s - k_0) . q = ln A_s - ln A_0 for s in S, k_0 being its first key.

    E = L B, with L the Cholesky factor of E E^T and B the orthonormal basis that is returned.
    """
    first = keys[rows.support[:, :1]]
    real = rows.real[:, 1:]
    spread = (keys[rows.support[:, 1:]] - first) * real[:, :, None]
    wanted = (rows.logs[:, 1:] - rows.logs[:, :1]) * real
    if spread.shape[1] == 1:
        length = torch.where(real, spread.square().sum(2).sqrt(), 1.0)
        basis = spread / length[:, :, None]
        return Equations(basis, basis[:, 0] * (wanted / length), length[:, 0] > 0)
    factor, info = torch.linalg.cholesky_ex(spread @ spread.mT + torch.diag_embed((~real).to(keys.dtype)))
    solved = torch.linalg.solve_triangular(factor, torch.cat([spread, wanted[:, :, None]], 2), upper=False)
    basis = solved[:, :, :-1]
    return Equations(basis, (solved[:, :, -1:].mT @ basis)[:, 0], info == 0)


def directions(
    keys: KeyTensor, rows: Rows, margin: float, violation: float = VIOLATION
) -> tuple[QueryTensor, Bool[Tensor, " row"]]:
    """Return z of every row, where base + z is the smallest query with its ratios and this margin, and which rows are
    done.
    """
    return _Lanes(keys, rows, margin, violation).solve()


def whole_margin(n_keys: int, accuracy: Accuracy) -> float:
    """Return the margin M that keeps the leak within the accuracy (see `lifted`)."""
    return math.log(n_keys / accuracy.leak) + math.log1p(accuracy.ratio_error)


def lifted(solved: Equations, direction: QueryTensor, keys: KeyTensor, rows: Rows, margin: float) -> QueryTensor:
    """Return base + s z for the smallest s with the whole margin, z = `direction` projected off the equations.

    With E base = e and E z = 0 the row's equations, base + s z has the row's ratios whatever s is. With n_j = k_0 - k_j
    it keeps key j a margin M below the support as soon as

        n_j . base + s n_j . z >= M + ln A_0,  so s = max over visible j not in S of (M + ln A_0 - n_j . base) / n_j . z

    if every n_j . z that is needed is positive. Otherwise there is no such s, the result is invalid, and the check
    afterwards rejects it. All visible zeros of a row together then have at most

        n e^-M  =  leak / (1 + e1)   of the support's mass      for      M = ln(n / leak) + ln(1 + e1):

    no exponential has to be computed, and the last term covers rounding as long as ratios survive it.
    """
    direction = solved.off(direction)
    reference = keys[rows.support[:, 0]]
    across = torch.nn.functional.pad(keys.T, (0, 0, 0, 1), value=1.0)
    needed = augmented(solved.base, reference)
    needed[:, -1] += margin + rows.logs[:, 0]
    needed, gained = needed @ across, augmented(-direction, reference) @ across
    rows.hide(needed, -1.0)
    rows.hide(gained, 1.0)
    scale = needed.div_(gained).amax(1).clamp_(min=0)
    return solved.base + scale[:, None] * direction


class _Lanes:
    """Rows that are solved side by side. Large tensors are made once and then overwritten, which costs less than making
    new ones.
    """

    def __init__(self, keys: KeyTensor, rows: Rows, margin: float, violation: float) -> None:
        n, width = keys.shape
        size, padded = min(_LANES, len(rows)), -(-n // _CELL) * _CELL
        self.keys, self.rows, self.margin, self.violation = keys, rows, margin, violation
        # A row of ones below the keys: (x, -x . k_0) times this is -n_j . x for all j
        self.across = torch.nn.functional.pad(keys.T, (0, padded - n, 0, 1), value=1.0).contiguous()
        self.squares = torch.nn.functional.pad(keys.square().sum(1), (0, padded - n))
        places = max(1, width - int(rows.real.sum(1).min()) + 2)
        self.row = torch.full((size,), -1)
        self.reference = keys.new_zeros(size, width)
        self.base = keys.new_zeros(size, width)
        self.offset = keys.new_zeros(size)
        self.moved = keys.new_zeros(size, width)
        self.table = keys.new_zeros(size, width + places, width)
        self.short = keys.new_zeros(size, padded)  # violation of each half-space minus the allowed violation
        self.nearness = keys.new_zeros(size, padded)  # 1 / |n|^2; 0 for keys without a half-space
        self.multipliers = keys.new_full((size, places), torch.inf)  # infinite in an empty place, which never leaves
        self.entering = torch.full((size,), -1)
        self.entering_multiplier = keys.new_zeros(size)
        self.age = torch.zeros(size, dtype=torch.int64)
        self.alive = torch.zeros(size, dtype=torch.bool)
        self.spare = keys.new_zeros(size, padded)
        self.next = 0
        self.answer = keys.new_zeros(len(rows), width)
        self.done = torch.zeros(len(rows), dtype=torch.bool)

    def solve(self) -> tuple[QueryTensor, Bool[Tensor, " row"]]:
        while True:
            idle = len(self.alive) - int(self.alive.sum())
            if self.next < len(self.rows) and idle * _REFILL >= len(self.alive):
                self._fill()
            elif self.next >= len(self.rows) and idle * 3 >= len(self.alive):
                self._narrow()
                if not len(self.row):
                    return self.answer, self.done
            self._choose()
            self._move()

    def _fill(self) -> None:
        lanes = (~self.alive).nonzero()[:, 0][: len(self.rows) - self.next]
        chosen = torch.arange(self.next, self.next + len(lanes))
        self.next += len(lanes)
        rows = self.rows[chosen]
        solved = equations(self.keys, rows)
        reference = self.keys[rows.support[:, 0]]
        width = self.keys.shape[1]
        offset = self.margin + rows.logs[:, 0]
        short = (augmented(solved.base, reference) @ self.across).add_(offset[:, None])
        short.mul_(torch.where(short > 0, 1 - self.violation, 1.0))
        lengths = self.squares - 2 * (reference @ self.across[:-1]) + reference.square().sum(1, keepdim=True)
        lengths -= (augmented(solved.basis, reference[:, None]) @ self.across).square_().sum(1)
        nearness = lengths.clamp_(min=_NEAREST).reciprocal_()
        nearness[:, len(self.keys) :] = 0
        rows.hide(nearness, 0.0)
        self.row[lanes], self.reference[lanes], self.moved[lanes] = chosen, reference, 0
        self.base[lanes], self.offset[lanes] = solved.base, offset
        self.short[lanes], self.nearness[lanes] = short, nearness
        self.table[lanes] = 0
        self.table[lanes, :width] = torch.eye(width, dtype=self.keys.dtype) - solved.basis.mT @ solved.basis
        self.multipliers[lanes], self.entering[lanes], self.age[lanes] = torch.inf, -1, 0
        self.alive[lanes] = solved.sound

    def _narrow(self) -> None:
        """Keep only the lanes that are still working, once no rows are left to start."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name not in ("keys", "across", "squares", "answer", "done", "alive"):
                setattr(self, name, value[self.alive])
        self.alive = self.alive[self.alive]

    def _choose(self) -> None:
        """Lanes without an entering half-space take the one with the largest violation / |n|^2, or are done."""
        torch.mul(self.short, self.nearness, out=self.spare)
        cells = self.spare.view(len(self.row), -1, _CELL)
        largest, cell = cells.amax(2).max(1)
        worst = cell * _CELL + cells[torch.arange(len(cell)), cell].argmax(1)
        free = self.entering < 0
        done = (free & (largest <= 0) & self.alive).nonzero()[:, 0]
        if len(done):
            self.answer[self.row[done]], self.done[self.row[done]] = self.moved[done], True
            self.alive[done] = False
        self.alive &= self.age < _STEPS_PER_WIDTH * self.keys.shape[1] + 100
        self.age += 1
        self.entering = torch.where(free, worst, self.entering)
        self.entering_multiplier.masked_fill_(free, 0)

    def _move(self) -> None:
        """Do one step for every lane: full (add the half-space) or partial (drop another)."""
        width = self.keys.shape[1]
        normal = self.reference - self.keys[self.entering]
        column = torch.bmm(normal[:, None, :], self.table.mT)[:, 0]
        rest, weights = column[:, :width], column[:, width:]
        size = torch.linalg.vecdot(rest, rest)
        dependent = size <= _DEPENDENT
        full = (self.offset - torch.linalg.vecdot(normal, self.base + self.moved)) / size
        full.masked_fill_(dependent, torch.inf)
        partial, leaving = torch.where(weights > 0, self.multipliers / weights, torch.inf).min(1)
        step = torch.minimum(full, partial)
        self.alive &= step.isfinite()  # an unbounded step: the row has no solution
        step.masked_fill_(~self.alive, 0)
        moved = step.masked_fill(dependent, 0)[:, None] * rest
        self.moved += moved
        self.short.addmm_(augmented(moved, self.reference), self.across)
        self.multipliers.addcmul_(weights, step[:, None], value=-1)
        self.entering_multiplier += step
        across = rest / size[:, None]
        across.masked_fill_(~self.alive[:, None], 0)
        takes = (full <= partial) & self.alive
        self._take_in(takes.nonzero()[:, 0], column)
        drops = (self.alive & ~takes).nonzero()[:, 0]
        places = leaving[drops] + width
        if len(drops):
            leaver = self.table[drops, places]
            column[drops, :width] = -leaver
            column[drops, width:] = torch.bmm(leaver[:, None, :], self.table[drops, width:].mT)[:, 0]
            across[drops] = leaver / torch.linalg.vecdot(leaver, leaver)[:, None]
        self.table.addcmul_(column[:, :, None], across[:, None, :], value=-1)
        self.table[drops, places] = 0
        self.multipliers[drops, leaving[drops]] = torch.inf

    def _take_in(self, lanes: Tensor, column: Float[Tensor, "lane entry"]) -> None:
        place = self.multipliers[lanes].argmax(1)  # an empty place
        column[lanes, self.keys.shape[1] + place] = -1
        self.multipliers[lanes, place] = self.entering_multiplier[lanes]
        self.entering[lanes] = -1


def augmented(
    vectors: Float[Tensor, "*lane width"], reference: Float[Tensor, "*alike width"]
) -> Float[Tensor, "*lane more"]:
    """Return (x, -x . k_0): multiplied by keys with a row of ones below them, it gives -n_j . x for every key j."""
    return torch.cat([vectors, -torch.linalg.vecdot(vectors, reference)[..., None]], -1)
