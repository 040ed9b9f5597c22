"""Largest margin on fixed keys: each query is the smallest one that lifts its support above all other keys."""

from __future__ import annotations

import numpy as np

from attnscope.core.construction import construction
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors, refuse_too_narrow
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.keys import make_keys
from attnscope.heads.solvers.largest_margin import largest_margin


def likely_width(pattern: Pattern) -> int:
    """Return 3 k: any k keys on a torus of that width form a face. Return 2 (a circle) for k = 1."""
    return max(2, 3 * pattern.k) if pattern.k > 1 else 2


@construction(
    title="Largest margin on fixed keys",
    summary="Fixed keys; each query solves a quadratic program for the smallest query with exact ratios and a margin.",
    citation="arXiv:2306.02896",
    universal=True,
    auto="any pattern",
    first_width=likely_width,
)
def margin(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    refuse_too_narrow(pattern, width)
    advance("keys", 0, pattern.n)
    keys = make_keys(pattern.n_keys, width, "auto", rng, separated=True, dtype=accuracy.dtype)
    return largest_margin(pattern, keys, accuracy, advance)
