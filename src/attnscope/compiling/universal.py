"""Keys once, patterns ever after: the setting of arXiv:2106.03764, where what the head knows is fixed beforehand.

    keys = fixed_keys(1024, 32)
    factors = queries_for(pattern, keys)            # as often as you like; `leaking` in its notes counts rows that fail
    proof = universality(40, 2)                     # are keys of width 4 proved to serve all rows of 2 of 40 keys?
    head = universal_head(pattern, proof)           # if so: the head of the proof for any such pattern

Fixed keys know no pattern, and which patterns they serve is seen when queries are sought; only those on the moment
curve are proved to serve all (`solvers.universality`), while n is small enough for the precision.
`frame` interpolates, thousands of rows a second, and wants keys of low coherence. `margin` solves a quadratic program
for every row, hundreds of rows a second, and needs half the width or less.
"""

from __future__ import annotations

import numpy as np

from attnscope.core.errors import RefusalError, nearest
from attnscope.heads.accuracy import Accuracy, asked, precision
from attnscope.heads.factors import Factors
from attnscope.heads.ratios import refuse_too_narrow
from attnscope.patterns.pattern import Pattern
from attnscope.patterns.seeds import refuse_negative
from attnscope.records.universality import Universality
from attnscope.solvers.interpolation import interpolated
from attnscope.solvers.keys import Keys, make_keys
from attnscope.solvers.largest_margin import largest_margin
from attnscope.solvers.universality import universal_head
from attnscope.solvers.universality import universality as worst_of_all

METHODS = {"frame": interpolated, "margin": largest_margin}

__all__ = ["METHODS", "Keys", "fixed_keys", "queries_for", "universal_head", "universality"]


def fixed_keys(
    n: int,
    d: int,
    kind: str = "auto",
    seed: int = 0,
    *,
    method: str = "margin",
    dtype: str = "float32",
) -> Keys:
    """n unit keys of width d. `auto` takes the kind that measured best for the method and precision meant."""
    refuse_negative(seed)
    rng = np.random.default_rng(seed)
    keys = make_keys(n, d, kind, rng, separated=_known(method) == "margin", dtype=precision(dtype))
    return Keys(keys.array, keys.kind, keys.coherence, keys.welch_bound, seed)


def queries_for(pattern: Pattern, keys: Keys, method: str = "margin", accuracy: Accuracy | None = None) -> Factors:
    """Queries that realise this pattern on these keys, which stay as they are. Made for `frame`, keys serve `margin` as
    well; those made for `margin` are too coherent for `frame`."""
    if len(keys.array) != pattern.n_keys:
        raise RefusalError(
            f"The pattern has {pattern.n_keys} keys and {len(keys.array)} are fixed: make keys for {pattern.n_keys}."
        )
    refuse_too_narrow(pattern, keys.width)
    return METHODS[_known(method)](pattern, keys, accuracy or Accuracy())


def universality(
    n: int,
    k: int,
    *,
    spread: float = 4.0,
    dtype: str = "float32",
    ratio_error: float = 0.1,
    leak: float = 0.01,
    width: int | None = None,
) -> Universality:
    """Whether keys on the moment curve (width 2k where none is given) are proved to serve every row of up to k of n
    keys with weights within a factor `spread`, and what the worst such row needs. `proved` False: not known."""
    return worst_of_all(n, k, spread, asked(ratio_error, leak, dtype), width)


def _known(method: str) -> str:
    if method not in METHODS:
        raise RefusalError(
            f"There is no way to find queries on fixed keys called '{method}'.{nearest(method, METHODS)}"
        )
    return method
