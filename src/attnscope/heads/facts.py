"""Facts about a head as plain data for files and pages: pattern, certificate, bounds, universality. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnscope.core.decoding import FieldError

ROW_SUM_SLACK = 1e-4  # rows in single-precision files sum to 1 within this; they are made exact
ROOM = 1 - 1e-9  # of the accuracy: computing the bounds themselves in float64 costs far less


@dataclass(frozen=True, eq=False)
class SparsePattern:
    """Entry `rows[e], columns[e]` is the share `weights[e]` of a query's attention, in order of rows, then columns.

    `causal`: query i sees the keys 0 to i; entries above the diagonal do not matter.
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
        """Entries in the fullest row."""
        return int(np.bincount(self.rows, minlength=self.n).max())

    def dense(self, first: int, last: int) -> Float[np.ndarray, "some_rows key"]:
        """Return rows first..last as a matrix."""
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
    """Worst and mean over rows, rounding included. `zero_ratio` is e2 of the paper: largest zero over smallest non-zero
    of one row. `rounding` is the most by which a support logit can be off on a machine that sums in the stated
    precision, in any order; None in files of older versions."""

    n: int
    k: int
    d: int
    dtype: str
    causal: bool
    ratio_error: float
    mean_ratio_error: float
    leak: float
    mean_leak: float
    zero_ratio: float
    max_logit: float
    query_norm: float
    key_norm: float
    asked_ratio_error: float
    asked_leak: float
    failing: int
    failing_rows: tuple[int, ...]
    rounding: float | None = None

    @property
    def reached(self) -> bool:
        return self.failing == 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


@dataclass(frozen=True)
class Bound:
    """`width` is needed, for the reason in `statement`. `proves`: for this very pattern, at this accuracy."""

    name: str
    width: int
    proves: bool
    statement: str
    citation: str


@dataclass(frozen=True)
class Bounds:
    """All bounds, and the floor under the product of the longest query and the longest key (as logits see them)."""

    bounds: tuple[Bound, ...]
    logit_floor: float

    @property
    def best(self) -> Bound:
        """The largest bound that proves. A head of this width is proved minimal."""
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
    """Bounds for all rows of `size` keys: any support, any weights within the spread, any order of summation."""

    size: int
    gap: float  # least |F| of a key off the support
    sharpness: float  # b, by which F is multiplied
    amplitude: float  # most that the harmonics of a query add up to; bounds every logit, but for rounding
    rounding: float  # most by which storing and summing move a logit
    ratio_error: float
    leak: float


@dataclass(frozen=True)
class Universality:
    """Keys on the moment curve against all rows of up to `k` keys whose weights lie within a factor `spread`."""

    n: int
    k: int
    d: int
    dtype: str
    spread: float
    asked_ratio_error: float
    asked_leak: float
    sizes: tuple[WorstSupport, ...]
    fits: bool  # no query overflows

    @property
    def proved(self) -> bool:
        """Whether every such row has a query that the certificate accepts. False says nothing: bounds are not tight."""
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
