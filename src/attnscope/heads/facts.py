"""Facts about a head as plain data for files and pages, without torch: pattern, certificate, bounds, universality."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int

from attnscope.core.decoding import FieldError
from attnscope.core.ranges import INFINITE, NAN, Count, Index, Positive, Several, Share, Size

Error = Annotated[Size, NAN, INFINITE]
"""A number that is infinite for a head that overflows in its precision; files write infinity as null."""
ROW_SUM_SLACK = 1e-4  # tolerance of row sums in single-precision files, which are then normalised
ROOM = 1 - 1e-9  # bounds must meet this share of the accuracy; the rest covers their own errors in float64


@dataclass(frozen=True, eq=False)
class SparsePattern:
    """A pattern as plain arrays: query `rows[e]` gives key `columns[e]` the share `weights[e]` of its attention.

    Entries are sorted by row, then by column. If `causal`, query i sees only keys 0 to i, and entries above the
    diagonal are ignored.
    """

    name: str
    n: int
    n_keys: int
    causal: bool
    rows: Int[np.ndarray, " entry"]
    columns: Int[np.ndarray, " entry"]
    weights: Float[np.ndarray, " entry"]

    @property
    def k(self) -> int:
        """The number of entries in the fullest row."""
        return int(np.bincount(self.rows, minlength=self.n).max())

    def dense(self, first: int, last: int) -> Float[np.ndarray, "some_rows key"]:
        """Return rows `first` to `last - 1` as a matrix."""
        start, stop = np.searchsorted(self.rows, (first, last))
        block = np.zeros((last - first, self.n_keys))
        block[self.rows[start:stop] - first, self.columns[start:stop]] = self.weights[start:stop]
        return block

    def check(self) -> None:
        """Raise FieldError with the name of the tensor if the arrays are not a pattern: files can hold anything."""
        rows, columns, weights = self.rows, self.columns, self.weights
        if (rows < 0).any() or (rows >= self.n).any() or len(np.unique(rows)) < self.n:
            raise FieldError(f"pattern_rows: each of the {self.n} queries needs a key, and there are no others")
        if (columns < 0).any() or (columns >= self.n_keys).any():
            raise FieldError(f"pattern_columns: a key lies outside the {self.n_keys} keys")
        if (np.diff(rows * self.n_keys + columns) <= 0).any():
            raise FieldError("pattern_columns: entries are not in order, or one appears twice")
        if self.causal and (columns > rows).any():
            raise FieldError("pattern_columns: a query looks into the future, which its causal mask hides")
        sums = np.bincount(rows, weights=weights, minlength=self.n)
        if not (weights > 0).all() or not (np.abs(sums - 1) <= ROW_SUM_SLACK).all():
            raise FieldError("pattern_weights: shares are above 0, and those of a query sum to 1")


@dataclass(frozen=True)
class Certificate:
    """How well a head realises a pattern: worst and mean over rows, rounding included. `zero_ratio` is e2 of
    arXiv:2106.03764, the largest zero of a row divided by its smallest non-zero. `rounding` bounds the error of a
    support logit on a machine that sums in the stated precision, in any order; None in files of older versions."""

    n: Several
    k: Several
    d: Several
    dtype: str
    causal: bool
    ratio_error: Error
    mean_ratio_error: Error
    leak: Share
    mean_leak: Share
    zero_ratio: Error
    max_logit: Error
    query_norm: Error
    key_norm: Error
    asked_ratio_error: Positive
    asked_leak: Share
    failing: Count
    failing_rows: tuple[Index, ...]
    rounding: Error | None = None

    @property
    def reached(self) -> bool:
        return self.failing == 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


@dataclass(frozen=True)
class Bound:
    """A lower bound on the width; `statement` gives the reason. If `proves`, it holds for this pattern and accuracy."""

    name: str
    width: Several
    proves: bool
    statement: str
    citation: str


@dataclass(frozen=True)
class Bounds:
    """All bounds on the width, and `logit_floor`, a lower bound on (norm of the longest query) x (norm of the longest
    key).
    """

    bounds: tuple[Bound, ...]
    logit_floor: Size

    @property
    def best(self) -> Bound:
        """The largest bound that is a proof (`proves`). A head of this width is as narrow as possible."""
        return max((bound for bound in self.bounds if bound.proves), key=lambda bound: bound.width)

    def __getitem__(self, name: str) -> Bound:
        return next(bound for bound in self.bounds if bound.name == name)

    def to_json(self) -> dict[str, Any]:
        return {
            "lower_bound": self.best.width,
            "lower_bound_reason": self.best.statement,
            "logit_floor": self.logit_floor,
            "bounds": [asdict(bound) for bound in self.bounds],
        }


@dataclass(frozen=True)
class WorstSupport:
    """Bounds for all rows of `size` keys: any support, any weights within the spread, any order of summation.

    F and b are defined in `heads.solvers.universality`.
    """

    size: Several
    gap: Size  # smallest |F| over keys off the support
    sharpness: Size  # b, by which F is multiplied
    amplitude: Size  # bound on the sum of a query's harmonics, and so on every logit before rounding
    rounding: Size  # largest error of a logit from storing and summing numbers
    ratio_error: Size
    leak: Share


@dataclass(frozen=True)
class Universality:
    """How well keys on the moment curve serve all rows of up to `k` keys with weights within a factor `spread`."""

    n: Several
    k: Several
    d: Several
    dtype: str
    spread: Positive
    asked_ratio_error: Positive
    asked_leak: Share
    sizes: tuple[WorstSupport, ...]
    fits: bool  # no query overflows

    @property
    def proved(self) -> bool:
        """Whether every such row is proved to have a query that the certificate accepts. False proves nothing."""
        ratio_error, leak = self.asked_ratio_error * ROOM, self.asked_leak * ROOM
        within = (worst.ratio_error <= ratio_error and worst.leak <= leak for worst in self.sizes)
        return self.fits and bool(self.sizes) and all(within)

    @property
    def ratio_error(self) -> float:
        return max(worst.ratio_error for worst in self.sizes)

    @property
    def leak(self) -> float:
        return max(worst.leak for worst in self.sizes)

    @property
    def max_logit(self) -> float:
        return max(worst.amplitude + worst.rounding for worst in self.sizes)
