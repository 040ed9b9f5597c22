"""Interpolation on a frame: the keys are fixed and have low coherence; each query is the smallest that fits its
support.
"""

from __future__ import annotations

import numpy as np

from attnscope.core.construction import construction
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors, refuse_too_narrow
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.interpolation import interpolated
from attnscope.heads.solvers.keys import make_keys


def likely_width(pattern: Pattern) -> int:
    """Return 2 k ln n. Other keys receive about c sqrt(k / d) times a Gaussian, and the largest of n Gaussians is about
    sqrt(2 ln n).
    """
    return max(2, min(pattern.n_keys, round(2 * pattern.k * float(np.log(pattern.n_keys)))))


@construction(
    title="Interpolation on a frame",
    summary="Fixed keys of low coherence; each query is the smallest one with exact products on its support.",
    citation="arXiv:2106.03764",
    universal=True,
    first_width=likely_width,
)
def frame(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    refuse_too_narrow(pattern, width)
    advance("keys", 0, 2)
    keys = make_keys(pattern.n_keys, width, "auto", rng, separated=False, dtype=accuracy.dtype)
    advance("queries", 1, 2)
    factors = interpolated(pattern, keys, accuracy)
    advance("queries", 2, 2)
    return factors
