"""Do keys that were found with one pattern serve others? That they serve *all* cannot be tried, so it is counted.

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
from attnscope.patterns.pattern import Pattern

OTHERS = 8
SECONDS = 20.0  # of processor time, after which no other pattern is begun


class Served(NamedTuple):
    """None where nothing was tried."""

    realised: int | None
    tried: int | None


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
