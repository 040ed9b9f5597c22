"""The row-sparse variant of `random_projection`: keys are random, and each query is a weighted sum of its keys.

Derivation (the same argument as arXiv:2106.03764, Theorem 1, with the trivial split B = B I): keys K = G and queries
Q = B G have logits <B_i G, e_j G>, whose expectation is B_ij. Their factors have |B_i| <= sqrt(k) beta and |e_j| = 1,
so t = delta / (sqrt(k) beta) keeps every logit within delta, and d >= 4 ln(8 n^2) / (t^2 - t^3) = O(k beta^2 ln n /
delta^2) is enough. So k replaces the paper's k^2, no decomposition is needed, and columns may be full (sinks). QED

Most of that width pays for the ratios on the support. Every head is finished by a step that makes its ratios exact, so
only the leak remains, and the width falls from 10^5 to 10^2.
"""

from __future__ import annotations

import math

import numpy as np

from attnscope.core.construction import construction
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.projection import Pair, Projection, redraw, target, theorem_notes
from attnscope.heads.solvers.theorem import theorem_width_rows


@construction(
    title="Random projection, rows",
    summary="Random keys, and queries that sum the keys of their support with the target logits as weights.",
    citation="arXiv:2106.03764",
    universal=False,
    first_width=lambda pattern: math.ceil(8 * math.log(pattern.n_keys + 1)),
)
def random_projection_rows(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    """Return queries B G and keys G: the first of at most ten draws whose finished head is certified."""
    wanted = target(pattern, accuracy)

    def project(projection: Projection) -> Pair:
        return np.asarray(wanted.logits @ projection), projection

    factors, facts = redraw(project, pattern.n_keys, pattern, width, accuracy, rng, advance)
    size = math.ceil(math.sqrt(pattern.n * pattern.n_keys))
    theorem = theorem_width_rows(size, pattern.k, pattern.spread, accuracy.ratio_error, wanted.zero_ratio)
    return Factors(factors.queries, factors.keys, {**facts, **theorem_notes(theorem, wanted, pattern, accuracy)})
