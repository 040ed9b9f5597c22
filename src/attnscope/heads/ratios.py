"""Exact ratios on the support: the smallest change of each query that gives its row the asked proportions.

softmax gives row i of a pattern its proportions A_ij : A_ij' exactly when, for all j, j' in the support S,

    q . k_j - ln A_ij  =  q . k_j' - ln A_ij'.

With the first support key k_0 as reference these are |S| - 1 linear equations D q = r, D = (k_j - k_0)_j,
r = (ln A_ij - ln A_i0)_j. The solution nearest to a given q is q + D^T (D D^T)^+ (r - D q). It exists whenever the
support keys are affinely independent, which needs width >= |S| - 1.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnscope.core.errors import RefusalError
from attnscope.patterns.pattern import Pattern

_ROWS_AT_ONCE = 4096


def refuse_too_narrow(pattern: Pattern, width: int) -> None:
    """For constructions whose queries are nothing without exact ratios."""
    if width < pattern.k - 1:
        raise RefusalError(
            f"Rows of {pattern.k} keys have no exact ratios in width {width}: ask for a width of {pattern.k - 1} "
            "or more."
        )


def with_exact_ratios(
    queries: Float[np.ndarray, "row width"], keys: Float[np.ndarray, "key width"], pattern: Pattern
) -> Float[np.ndarray, "row width"]:
    """The nearest queries that keep every ratio of the pattern on `keys` (least squares where none can)."""
    support, weights, real = pattern.padded()
    answer = np.array(queries, dtype=np.float64)
    if pattern.k == 1:
        return answer
    for first in range(0, pattern.n, _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        chosen = keys[support[rows]].astype(np.float64)
        differences = (chosen[:, 1:] - chosen[:, :1]) * real[rows, 1:, None]
        wanted = (np.log(weights[rows, 1:]) - np.log(weights[rows, :1])) * real[rows, 1:]
        answer[rows] += _smallest_solution(differences, wanted - np.einsum("rkd,rd->rk", differences, answer[rows]))
    return answer


def _smallest_solution(
    differences: Float[np.ndarray, "row equation width"], wanted: Float[np.ndarray, "row equation"]
) -> Float[np.ndarray, "row width"]:
    inverse = np.linalg.pinv(differences, rcond=1e-12)
    return np.asarray(np.einsum("rdk,rk->rd", inverse, wanted))
