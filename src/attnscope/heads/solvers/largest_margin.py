"""Factors of largest margin on fixed keys: solve every row, check every solution, repair failures, then scale.

A solution is accepted only if its duality gap and its worst violation are small. With base the smallest query with the
row's ratios, N the active normals projected off the equations and b their offsets,

    primal = |q - base|^2 / 2,      dual = u . (b - N base) - |N^T u|^2 / 2,     u >= 0,      dual <= optimum <= primal.

Rows that fail the check are solved again, one by one, as a least-distance problem by non-negative least squares
(Lawson and Hanson 1974, chapter 23). Rows whose support is not a face of the polytope of the keys have no solution:
the notes list them, and they get the better of the interpolated query and the solver's last point.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors, KeyArray, with_exact_ratios
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.interpolation import NAMED_ROWS, interpolation, leaking, longest_query, settled
from attnscope.heads.solvers.keys import Keys
from attnscope.heads.solvers.separation import STATUSES, Separation, separated

CHECKED = 1e-6  # largest relative duality gap, and violation as a share of the margin, of an accepted solution
_BEYOND = 10  # the solver abandons a row at this many times the norm that the precision can hold
_BLOCK_ELEMENTS = 2**20


def largest_margin(pattern: Pattern, keys: Keys, accuracy: Accuracy, advance: Advance = silent) -> Factors:
    """Return factors on these keys. Ratios are exact; each query is the smallest that keeps all other keys a margin
    below.
    """
    margin = float(np.log(pattern.n_keys / accuracy.leak))
    solution = separated(pattern, keys.array, margin, _BEYOND * longest_query(accuracy, keys.width), advance)
    solution, repaired = repair(solution, pattern, keys.array, margin)
    scaled = settled(solution.base, solution.queries - solution.base, keys.array, pattern, accuracy)
    queries, met = scaled.queries, scaled.met.copy()
    rest = np.flatnonzero(~met)
    if len(rest):
        base, direction = interpolation(pattern, keys.array, rest)
        other = settled(base, direction, keys.array, pattern, accuracy, rest)
        better = other.log_odds < scaled.log_odds[rest]
        queries[rest[better]], met[rest[better]] = other.queries[better], other.met[better]
    gap, violation = check(solution, pattern, keys.array, margin)
    solved = solution.status == STATUSES.index("separated")
    notes = {
        **keys.facts(),
        "margin": margin,
        "rows": {status: solution.count(status) for status in STATUSES},
        "inseparable_rows": np.flatnonzero(solution.status == STATUSES.index("inseparable"))[:NAMED_ROWS].tolist(),
        "steps": solution.steps,
        "repaired": repaired,
        "duality_gap": float(gap[solved].max(initial=0)),
        "violation": float(violation[solved].max(initial=0)),
        "converged": solution.count("stopped") == 0,
        **leaking(~met),
    }
    return Factors(with_exact_ratios(queries, keys.array, pattern), keys.array, notes)


def check(
    solution: Separation, pattern: Pattern, keys: KeyArray, margin: float
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Return the relative duality gap and the worst violation (as a share of the margin) of every row."""
    support, weights, real = pattern.padded()
    gap, violation = np.empty(pattern.n), np.empty(pattern.n)
    step = max(1, min(_BLOCK_ELEMENTS // pattern.n_keys, _BLOCK_ELEMENTS // keys.shape[1] ** 2))
    for first in range(0, pattern.n, step):
        rows = np.arange(first, min(first + step, pattern.n))
        query, base, reference = solution.queries[rows], solution.base[rows], keys[support[rows, 0]]
        offset = margin + np.log(weights[rows, 0])
        short = query @ keys.T + (offset - np.einsum("rd,rd->r", query, reference))[:, None]
        short[_unseen(pattern, rows, support[rows])] = -np.inf
        violation[rows] = np.maximum(short.max(1), 0) / margin
        spread = (keys[support[rows, 1:]] - reference[:, None]) * real[rows, 1:, None]
        u = np.maximum(solution.multipliers[rows], 0) * (solution.active[rows] >= 0)
        normals = reference[:, None] - keys[np.maximum(solution.active[rows], 0)]
        force = np.einsum("ra,rad->rd", u, normals)
        force -= np.einsum("rde,rd->re", np.linalg.pinv(spread) @ spread, force)
        primal = 0.5 * ((query - base) ** 2).sum(1)
        dual = (u * (offset[:, None] - np.einsum("rad,rd->ra", normals, base))).sum(1) - 0.5 * (force**2).sum(1)
        gap[rows] = np.abs(primal - dual) / np.maximum(primal, 1e-12)
    return gap, violation


def repair(solution: Separation, pattern: Pattern, keys: KeyArray, margin: float) -> tuple[Separation, int]:
    """Solve again, by non-negative least squares, rows that stopped or failed the check; also return their number."""
    gap, violation = check(solution, pattern, keys, margin)
    status = solution.status.copy()
    wrong = (status == STATUSES.index("separated")) & ~((gap <= CHECKED) & (violation <= CHECKED))
    again = np.flatnonzero(wrong | (status == STATUSES.index("stopped")))
    if not len(again):
        return solution, 0
    queries, active, multipliers = solution.queries.copy(), solution.active.copy(), solution.multipliers.copy()
    for row in again:
        scale = max(1.0, float(np.linalg.norm(queries[row])))
        least = least_distance(pattern, keys, int(row), margin, solution.base[row], scale)
        if least is None:
            status[row] = STATUSES.index("inseparable")
            continue
        queries[row], (which, how_much) = least[0], least[1]
        places = np.argsort(-how_much)[: active.shape[1]]
        active[row], multipliers[row] = -1, 0
        active[row, : len(places)], multipliers[row, : len(places)] = which[places], how_much[places]
    fixed = replace(solution, queries=queries, status=status, active=active, multipliers=multipliers)
    gap, violation = check(fixed, pattern, keys, margin)
    good = (gap <= CHECKED) & (violation <= CHECKED)
    redone = np.isin(np.arange(pattern.n), again) & (status != STATUSES.index("inseparable"))
    status[redone] = np.where(good[redone], STATUSES.index("separated"), STATUSES.index("stopped"))
    return replace(fixed, status=status), len(again)


def least_distance(
    pattern: Pattern, keys: KeyArray, row: int, margin: float, base: np.ndarray, scale: float
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]] | None:
    """Return the smallest q = base + z, E z = 0, G z >= h, with its active keys and multipliers; None if impossible.

    With u >= 0 minimising |[G h]^T u - (0, .., 0, 1)| and r the residual, z = -r[:-1] / r[-1]; r = 0 means no z at all.
    """
    from scipy.optimize import nnls

    support = pattern.columns[pattern.starts[row] : pattern.starts[row + 1]]
    reference = keys[support[0]]
    spread = keys[support[1:]] - reference
    others = np.flatnonzero(~_unseen(pattern, np.array([row]), support[None])[0])
    normals = reference - keys[others]
    needed = (margin + np.log(pattern.weights[pattern.starts[row]]) - normals @ base) / scale
    normals = normals - normals @ (np.linalg.pinv(spread) @ spread) if len(spread) else normals
    system = np.vstack([normals.T, needed])
    goal = np.zeros(len(system))
    goal[-1] = 1
    try:
        u, _ = nnls(system, goal, maxiter=50 * len(system))
    except RuntimeError:  # too many iterations: the row is reported as stopped
        return base, (np.zeros(0, dtype=np.int64), np.zeros(0))
    residual = system @ u - goal
    if residual[-1] > -1e-14:
        return None
    held = u > 0
    return base - residual[:-1] / residual[-1] * scale, (others[held], -u[held] / residual[-1] * scale)


def _unseen(pattern: Pattern, rows: np.ndarray, support: np.ndarray) -> Bool[np.ndarray, "row key"]:
    """Return which keys have no half-space: keys of the support, and keys that a causal mask hides."""
    unseen = np.zeros((len(rows), pattern.n_keys), dtype=bool)
    unseen[np.arange(len(rows))[:, None], support] = True
    if pattern.causal:
        unseen |= np.arange(pattern.n_keys) > rows[:, None]
    return unseen
