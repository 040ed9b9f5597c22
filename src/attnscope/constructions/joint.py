"""Joint optimisation: search queries and keys together for one pattern, then make the ratios exact.

A frame serves every pattern and pays for it in width. For one pattern the keys can be placed so that the few keys of
each query lie on the outside of the cloud. Descent on the leak of all rows (`solvers.descent`) does that. During the
descent ratios are only penalised. Every LOOK_EVERY steps they are made exact: with the queries alone if they have free
directions, or with queries and keys together (`TwoSides`) if rows have more keys than the head has dimensions. For one
key per row the answer is known: all points of a circle are corners, so width 2 is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from attnscope.core.construction import construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors, KeyArray
from attnscope.heads.certificate import rounding_of_one
from attnscope.heads.head import KeyTensor, QueryTensor
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import certified
from attnscope.heads.solvers.descent import Adam, Target, TwoSides, onto_ratios, slopes

RATE = 0.3
STIFFNESS = 0.1  # at 256 x 4, width 8, from random keys: 0.1 took 400 steps, 1 took 700
URGENT_BELOW = 0.1  # share of failing rows below which failing rows get more weight
MORE, LESS, MOST_URGENT = 1.1, 0.98, 10.0  # at each check: factor for failing rows, decay for the others, the limit
FORGIVEN = 0.4  # share of the allowed leak below which a row has no gradient
START_SCALE = 3.0  # length of the first queries and keys: logits of about 9 on the support
LOOK_EVERY = 20
HELD, HELD_OF_BOTH = 0.8, 0.5  # share of the steps that are made at the full rate, which repairs the last failing rows
MOST_STEPS, FEWEST_STEPS = 4000, 300
MOST_STEPS_OF_BOTH = 2000  # for rows with more keys than the width, whose checks cost as much as the steps between them
WORK = 2**34  # pairs of query and key computed in one attempt, within the limits on steps
NOISES = (0.1, 0.5)  # one attempt each: noise on the first keys, as a share of their length
DENSE_BELOW = 512  # keys or queries up to which all singular vectors are computed
GIVE_UP_ABOVE = 0.35  # abandon a width if more than this share of rows fails after a quarter of the steps
RESTART_BELOW = 0.05  # start a second time if at most this share of rows fails
FINE_DTYPES = ("float32", "float64")  # precisions fine enough to reach exact ratios by moving keys
QUICK_SOLVE, THOROUGH_SOLVE = {"rounds": 1, "iterations": 10}, {"rounds": 3, "iterations": 40}  # of `TwoSides`


@dataclass(frozen=True, eq=False)
class _Attempt:
    queries: QueryTensor
    keys: KeyTensor
    failing: int
    steps: int


@construction(
    title="Joint optimisation",
    summary="Queries and keys optimised together for this one pattern, then exact ratios.",
    citation="arXiv:2106.03764 (the pattern), this software (the method)",
    universal=False,
    auto="one pattern",
    first_width=lambda pattern: max(2, 2 * math.ceil(pattern.counts.mean()) + 2),
)
def joint(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    if width < 1:
        raise RefusalError(f"A head of width {width} cannot be built: give a width of at least 1.")
    if pattern.k == 1 and width == 2:
        return _circle(pattern, width, accuracy)
    attempts: list[_Attempt] = []
    as_found = _fuller(pattern, width, accuracy)
    starts = NOISES[:1] if as_found else NOISES
    # If many rows fail, another start would not help.
    while len(attempts) < len(starts) and all(0 < a.failing <= pattern.n * RESTART_BELOW for a in attempts):
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        attempts.append(_descend(pattern, width, accuracy, starts[len(attempts)], generator, advance))
    best = min(attempts, key=lambda attempt: attempt.failing)
    if best.failing and pattern.k == 1 and width > 2:
        circle = _circle(pattern, width, accuracy)
        if circle.notes["failing"] < best.failing:
            return circle
    notes = {
        "iterations": sum(attempt.steps for attempt in attempts),
        "attempts": len(attempts),
        "converged": best.failing == 0,
        "failing": best.failing,
    }
    return Factors(best.queries.double().numpy(), best.keys.double().numpy(), notes, as_found)


def _fuller(pattern: Pattern, width: int, accuracy: Accuracy) -> bool:
    """Return whether the keys must move too: a query with more keys than the width has no free direction left.

    Half precision cannot place keys that finely, so such widths are out of reach.
    """
    return pattern.k > width and accuracy.dtype in FINE_DTYPES


def _descend(
    pattern: Pattern, width: int, accuracy: Accuracy, noise: float, generator: torch.Generator, advance: Advance
) -> _Attempt:
    """Descend from one start until a check finds the accuracy reached, or the steps are used up."""
    precision: torch.dtype = getattr(torch, accuracy.dtype)
    target = Target.of(pattern)
    sides = TwoSides(target, width) if _fuller(pattern, width, accuracy) else None
    queries, keys = _start(pattern, target, width, noise, generator)
    on_queries, on_keys = Adam(queries), Adam(keys)
    urgency = torch.ones(pattern.n)
    most = MOST_STEPS_OF_BOTH if sides else MOST_STEPS
    steps = int(np.clip(WORK // (pattern.n * pattern.n_keys), FEWEST_STEPS, most))
    held = HELD_OF_BOTH if sides else HELD
    best = _Attempt(queries.clone(), keys.clone(), pattern.n + 1, 0)
    for step in range(1, steps + 1):
        # The leak is measured with rounded keys, the step is made on the unrounded ones.
        rounded_keys = keys.to(precision).float()
        looking = step % LOOK_EVERY == 0 or step == steps
        if looking and sides:
            new_queries, rounded_keys = sides.onto_ratios(queries, rounded_keys, **QUICK_SOLVE)
            queries.copy_(new_queries)
            keys.copy_(rounded_keys)
        elif looking:
            queries.copy_(onto_ratios(queries, rounded_keys, target))
        slope = slopes(queries, rounded_keys, target, urgency, forgiven=FORGIVEN * accuracy.leak, stiffness=STIFFNESS)
        if looking:
            advance(f"joint, width {width}", step, steps)
            fails = ~(slope.leaks <= accuracy.leak)
            leaking = failing = int(fails.sum())
            if leaking == 0:
                if sides:
                    new_queries, rounded_keys = sides.onto_ratios(queries, rounded_keys, **THOROUGH_SOLVE)
                    queries.copy_(new_queries)
                    keys.copy_(rounded_keys)
                failing = _certified_failing(queries, rounded_keys, pattern, accuracy, sides is not None)
            if failing < best.failing:
                best = _Attempt(queries.clone(), rounded_keys.clone(), failing, step)
            if failing == 0:
                return best
            if step >= steps // 4 and leaking > GIVE_UP_ABOVE * pattern.n:
                break
            if failing < URGENT_BELOW * pattern.n:
                urgency = torch.where(fails, (MORE * urgency).clamp(max=MOST_URGENT), 1 + LESS * (urgency - 1))
        rate = RATE * min(1.0, (1 - step / steps) / (1 - held) + 0.02)
        on_queries.step(slope.queries, rate)
        on_keys.step(slope.keys, rate)
    queries, keys = best.queries, best.keys
    if sides:
        queries, keys = sides.onto_ratios(queries, keys, **THOROUGH_SOLVE)
    return _Attempt(queries, keys, best.failing, step)


def _certified_failing(
    queries: Tensor, keys: Tensor, pattern: Pattern, accuracy: Accuracy, as_found: bool = False
) -> int:
    factors = Factors(queries.double().numpy(), keys.double().numpy(), as_found=as_found)
    return certified(factors, pattern, accuracy, "joint").certificate.failing


def _start(
    pattern: Pattern, target: Target, width: int, noise: float, generator: torch.Generator
) -> tuple[QueryTensor, KeyTensor]:
    """Return noisy keys, similar for keys that share queries, and queries that point to the middle of their keys."""
    spectral = torch.from_numpy(_spectral(pattern, width, generator)).float()
    keys = normalize(spectral + noise * width**-0.5 * torch.randn(spectral.shape, generator=generator))
    middle = torch.zeros(pattern.n, width)
    for place in range(pattern.k):
        middle += keys[target.support[:, place]] * target.real[:, place, None]
    return START_SCALE * normalize(middle), START_SCALE * keys


def _spectral(pattern: Pattern, width: int, generator: torch.Generator) -> KeyArray:
    """Return keys of mean square length 1, computed from the bipartite graph of the pattern.

    Let B be 1 where the pattern is not zero, and R, C its row and column sums. The right singular vectors of R^-1/2 B
    C^-1/2, divided by C^1/2, are the directions in which keys of one query differ least. The constant direction, C^1/2
    itself, does not tell keys apart and is projected out. (Dropping the first vector is not enough: in a graph of
    several components the constant vector is mixed with others.) The keys of a window or a cycle lie in order on a
    closed curve. Random keys needed more steps.
    """
    from scipy.sparse.linalg import svds

    entries = pattern.sparse()
    in_row, in_column = pattern.counts, np.maximum(np.bincount(pattern.columns, minlength=pattern.n_keys), 1)
    entries.data = (in_row[pattern.rows] * in_column[pattern.columns]) ** -0.5
    smaller = min(entries.shape)
    if smaller <= max(DENSE_BELOW, width + 2):
        _, values, right = np.linalg.svd(entries.toarray(), full_matrices=False)
    else:
        first = torch.randn(smaller, generator=generator, dtype=torch.float64).numpy()
        _, values, right = svds(entries, k=width + 1, v0=first, return_singular_vectors="vh")
    constant = np.sqrt(in_column / in_column.sum())
    telling = values[:, None] * (right - np.outer(right @ constant, constant))
    directions = np.linalg.svd(telling, full_matrices=False)[2][:width].T / np.sqrt(in_column)[:, None]
    coordinates = np.zeros((pattern.n_keys, width))
    coordinates[:, : directions.shape[1]] = directions
    coordinates *= np.sqrt(pattern.n_keys) / max(float(np.linalg.norm(coordinates)), 1e-12)
    return coordinates


def _circle(pattern: Pattern, width: int, accuracy: Accuracy) -> Factors:
    """Return a head of width 2 for one key per row: m used keys in equal steps on a circle, the unused ones at its
    centre.

    Each query points at its key. With queries of length t the two nearest wrong keys lie t (1 - cos(2 pi / m)) lower,
    and the others fall off with the square of their distance; unused keys lie t lower. A gap of ln(4 / leak) bounds the
    first kind by half of the leak with room to spare, ln(2 n / leak) the second. Rounding (`heads.certificate`) can
    bring two logits closer by 2 t times its bound for products that sum to 1, so that much is subtracted from 1 - cos.
    Half a unit of gap covers storing the numbers in half precision.
    """
    used = np.unique(pattern.columns)
    step = 2 * np.pi / max(3, len(used))
    keys = np.zeros((pattern.n_keys, width))
    keys[used, :2] = np.stack([np.cos(step * np.arange(len(used))), np.sin(step * np.arange(len(used)))], axis=1)
    fall = 1 - np.cos(step)
    # sum |cos cos| + |sin sin| is at most 1. If rounding exceeds the fall, no length helps.
    fall = max(fall - 2 * rounding_of_one(accuracy.dtype, width), 0.1 * fall)
    length = max((0.5 + np.log(4 / accuracy.leak)) / fall, 1 + np.log(2 * pattern.n_keys / accuracy.leak))
    queries = length * keys[pattern.columns]
    failing = _certified_failing(torch.from_numpy(queries), torch.from_numpy(keys), pattern, accuracy)
    notes = {"iterations": 0, "attempts": 0, "converged": failing == 0, "failing": failing, "circle": len(used)}
    return Factors(queries, keys, notes)
