"""A long cycle and one row beside it need width 3: a bound for single patterns with rows of two keys.

Rows with two keys are edges between keys. Suppose that they contain a cycle C of at least 5 keys, that some row has
a support S that shares no key with C, that all these rows are separated (bounds.py, (*)), and that the width is 2.
Each support is then cut off from all other keys by a line. Let V be the corners of the convex hull of all keys.

1. A half-plane that holds a key holds a corner. So each support has a corner in it, and two keys of an edge are never
   both without one: of m keys of C at least m / 2, so at least 3, are corners.
2. Corners in a half-plane are neighbours along the hull. So an edge of two corners joins neighbours.
3. A key x that is no corner and shares an edge with the corner a lies in a half-plane with a alone of V, so outside the
   hull of V without a: in the ear of a, the triangle of a and its neighbours without its base. On C it shares edges
   with two corners a != a', so it lies in both ears. Were a and a' no neighbours, the three corners of the ear of a'
   would all be others than a, so that the ear of a' would lie in the hull of V without a, which the ear of a does not
   meet. So a and a' are neighbours.
4. By 2 and 3 the corners on C, in the order of C, are each the neighbour of the next. There are at least 3, each is
   met once, and the walk closes: it runs round the whole hull, and every corner is on C.
5. By 1 the support S has a corner in it, which is on C. Contradiction.

(Two keys in one place are not cut apart, and each key of C has a partner that the other has not, so places differ.)
The union of two random permutations has such a cycle and such a row nearly always; `constructions.paraboloid` has width
3 for it. One cycle of all keys fits a circle, width 2.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from attnscope.heads.facts import Bound
from attnscope.heads.pattern import Pattern
from attnscope.heads.reduction import chains

FEWEST = 5


def cycle_and_row(pattern: Pattern, separated: Bool[np.ndarray, " row"]) -> Bound:
    """Looks for the cycle among patterns whose keys are chains; a causal mask hides what the proof needs."""
    needs = not pattern.causal and _there_is_one(pattern, separated)
    statement = (
        "A cycle of five keys or more runs round the whole hull in a plane, and another row lies beside it."
        if needs
        else "No cycle of pairs with a row beside it was looked for or found."
    )
    return Bound("cycle", 3 if needs else 1, True, statement, "convex position in the plane; this software")


def _there_is_one(pattern: Pattern, separated: Bool[np.ndarray, " row"]) -> bool:
    if not separated.any():
        return False
    rows = np.flatnonzero(separated)
    some = Pattern.of(
        *_entries(pattern, rows), n=len(rows), n_keys=pattern.n_keys, normalise=True
    )  # rows that are not separated prove nothing, and may be left out
    parts = chains(some)
    if parts is None:
        return False
    for part in parts:
        if part.closed and len(part) >= FEWEST:
            on_it = np.zeros(pattern.n_keys, dtype=bool)
            on_it[list(part.keys)] = True
            if not np.logical_or.reduceat(on_it[some.columns], some.starts[:-1]).all():
                return True
    return False


def _entries(pattern: Pattern, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kept = pattern.sparse()[rows].tocoo()
    return kept.row, kept.col, kept.data
