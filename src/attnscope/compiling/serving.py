"""Do keys that were found with one pattern serve others? That they serve *all* is proved (`proof`), or it is not known:
it cannot be tried, so what was tried is counted (`served`).

The patterns that are tried have rows of the same sizes as the one at hand, with supports drawn anew among the keys that
each query sees and the same weights in another order: nobody looked for them when the keys were made.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attnscope.compiling.by_method import building
from attnscope.core.construction import Construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.head import Head
from attnscope.patterns.pattern import Pattern
from attnscope.records.universality import Universality
from attnscope.solvers.universality import universality_of

OTHERS = 8
SECONDS = 20.0  # of processor time, after which no other pattern is begun
SPREADS = (1000.0, 16.0)  # of weights in a row, tried before the pattern's own


class Served(NamedTuple):
    """None where nothing was tried."""

    realised: int | None
    tried: int | None


def proof(head: Head, pattern: Pattern, accuracy: Accuracy) -> Universality | None:
    """A proof that the stored keys of this head serve all rows of up to `pattern.k` keys, for the largest spread of
    weights at hand; None where there is none."""
    for spread in (*(one for one in SPREADS if one > pattern.spread), pattern.spread):
        found = universality_of(head.keys, pattern.k, spread, accuracy)
        if found is None or found.proved:
            return found
    return None


def served(
    construction: Construction, pattern: Pattern, accuracy: Accuracy, width: int, seed: int, advance: Advance
) -> Served:
    """How many fresh patterns the keys of this construction, width and seed realise, of how many."""
    realised = tried = 0
    start = time.process_time()
    while tried < OTHERS and time.process_time() - start < SECONDS:
        advance(f"width {width}: another pattern on the same keys", tried, OTHERS)
        other = another(pattern, np.random.default_rng([seed, tried]))
        try:
            certificate = building(construction, other, accuracy)(width, seed, advance)[1]
        except RefusalError:  # its rows need more than this width
            certificate = None
        tried += 1
        realised += certificate is not None and certificate.reached
    return Served(realised, tried)


def another(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """Rows of the same sizes on other keys."""
    drawn = [rng.permutation(int(seen))[:size] for seen, size in zip(pattern.visible, pattern.counts, strict=True)]
    weights = pattern.weights.copy()
    for a, b in pairwise(pattern.starts):
        rng.shuffle(weights[a:b])
    return Pattern.of(
        pattern.rows,
        np.concatenate(drawn),
        weights,
        n=pattern.n,
        n_keys=pattern.n_keys,
        causal=pattern.causal,
        normalise=True,
        name="another pattern",
    )
