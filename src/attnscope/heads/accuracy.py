"""What counts as realising a pattern: two errors of the worst row, and the precision the head will run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from attnscope.core.errors import RefusalError, nearest
from attnscope.heads.pattern import Pattern

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def precision(name: str) -> Dtype:
    """The precision of this name, as people give it."""
    for known in DTYPES:
        if name == known:
            return known
    raise RefusalError(f"There is no precision called '{name}'.{nearest(name, DTYPES)}")


@dataclass(frozen=True)
class Accuracy:
    """`ratio_error`: e1 of arXiv:2106.03764, ratios inside a row's support are kept within a factor 1 + e1.

    `leak`: the share of a row's attention that falls on zeros of the pattern, at most.
    """

    ratio_error: float = 0.1
    leak: float = 0.01
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        if not 0 < self.ratio_error < 100:
            raise RefusalError(
                f"A ratio error of {self.ratio_error:g} cannot be asked for: choose a number above 0, like 0.1."
            )
        if not 0 < self.leak < 1:
            raise RefusalError(
                f"A leak of {self.leak:g} cannot be asked for: choose a share between 0 and 1, like 0.01."
            )
        precision(self.dtype)


def checked_accuracy(ratio_error: float, leak: float, dtype: str) -> Accuracy:
    """An accuracy as people ask for it: the name of the precision may be wrong."""
    return Accuracy(ratio_error, leak, precision(dtype))


# Factors: the queries and keys a construction found, in float64, before they are rounded and certified.


@dataclass(frozen=True, eq=False)
class Factors:
    """Logits are `queries @ keys.T`: no scale, no mask. `notes` is what the construction has to say about itself.

    `as_found`: ratios are within what is asked, by the keys as much as by the queries, so that rounding leaves queries
    as they are. Else they get exact ratios on the rounded keys, which rows fuller than the width do not survive.
    """

    queries: Float[np.ndarray, "row width"]
    keys: Float[np.ndarray, "key width"]
    notes: Mapping[str, Any] = field(default_factory=dict)
    as_found: bool = False

    @property
    def width(self) -> int:
        return int(self.queries.shape[1])


# Exact ratios on the support: the smallest change of each query that gives its row the asked proportions.
#
# softmax gives row i of a pattern its proportions A_ij : A_ij' exactly when, for all j, j' in the support S,
#
#     q . k_j - ln A_ij  =  q . k_j' - ln A_ij'.
#
# With the first support key k_0 as reference these are |S| - 1 linear equations D q = r, D = (k_j - k_0)_j,
# r = (ln A_ij - ln A_i0)_j. The solution nearest to a given q is q + D^T (D D^T)^+ (r - D q). It exists whenever the
# support keys are affinely independent, which needs width >= |S| - 1.

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
