"""`Accuracy`: how closely a head must realise a pattern. `Factors`: a construction's unrounded queries and keys."""

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
QueryArray = Float[np.ndarray, "row width"]
KeyArray = Float[np.ndarray, "key width"]
_ROWS_AT_ONCE = 4096


def precision(name: str) -> Dtype:
    """Return the precision of this name, or refuse an unknown one."""
    for known in DTYPES:
        if name == known:
            return known
    raise RefusalError(f"There is no precision called '{name}'.{nearest(name, DTYPES)}")


@dataclass(frozen=True)
class Accuracy:
    """The accuracy that a head must reach.

    `ratio_error` is e1 of arXiv:2106.03764: ratios inside a row's support are kept within a factor 1 + e1.

    `leak` is the largest share of a row's attention that may fall on zeros of the pattern.
    """

    ratio_error: float = 0.1
    leak: float = 0.01
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        if not 0 < self.ratio_error < 100:
            raise RefusalError(f"A ratio error of {self.ratio_error:g} is impossible: choose one above 0, like 0.1.")
        if not 0 < self.leak < 1:
            raise RefusalError(f"A leak of {self.leak:g} is impossible: choose a share between 0 and 1, like 0.01.")
        precision(self.dtype)


def checked_accuracy(ratio_error: float, leak: float, dtype: str) -> Accuracy:
    """Return the requested accuracy. Refuse an unknown precision."""
    return Accuracy(ratio_error, leak, precision(dtype))


@dataclass(frozen=True, eq=False)
class Factors:
    """Queries and keys in float64. Logits are `queries @ keys.T`: no scale, no mask.

    `notes` are facts about the construction for its record. With `as_found`, the ratios already hold and rounding does
    not adjust the queries. Otherwise the queries are adjusted to have exact ratios on the rounded keys, which is
    impossible for rows of more than width + 1 keys.
    """

    queries: QueryArray
    keys: KeyArray
    notes: Mapping[str, Any] = field(default_factory=dict)
    as_found: bool = False

    @property
    def width(self) -> int:
        return int(self.queries.shape[1])


def refuse_too_narrow(pattern: Pattern, width: int) -> None:
    """Raise RefusalError if the width is too small for exact ratios."""
    if width < pattern.k - 1:
        raise RefusalError(
            f"Rows of {pattern.k} keys have no exact ratios in width {width}: ask for a width of {pattern.k - 1} "
            "or more."
        )


def with_exact_ratios(queries: QueryArray, keys: KeyArray, pattern: Pattern) -> QueryArray:
    """Return the nearest queries that keep every ratio of the pattern on `keys` (least squares where impossible).

    softmax gives row i its proportions A_ij : A_ij' exactly when, for all j, j' in the support S,

        q . k_j - ln A_ij  =  q . k_j' - ln A_ij'.

    With the first support key k_0 as reference these are |S| - 1 linear equations D q = r, D = (k_j - k_0)_j,
    r = (ln A_ij - ln A_i0)_j. The solution nearest to a given q is q + D^T (D D^T)^+ (r - D q). It exists whenever the
    support keys are affinely independent, which needs width >= |S| - 1.
    """
    support, weights, real = pattern.padded()
    answer = np.array(queries, dtype=np.float64)
    if pattern.k == 1:
        return answer
    for first in range(0, pattern.n, _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        chosen = keys[support[rows]].astype(np.float64)
        differences = (chosen[:, 1:] - chosen[:, :1]) * real[rows, 1:, None]
        wanted = (np.log(weights[rows, 1:]) - np.log(weights[rows, :1])) * real[rows, 1:]
        missing = wanted - np.einsum("rkd,rd->rk", differences, answer[rows])
        answer[rows] += np.einsum("rdk,rk->rd", np.linalg.pinv(differences, rcond=1e-12), missing)
    return answer
