"""A pattern as plain arrays, in the form that files hold; `patterns.pattern` has the one that is worked with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attnscope.records.decoding import FieldError

ROW_SUM_SLACK = 1e-4  # single-precision files hold rows that sum to 1 within this; they are made exact


@dataclass(frozen=True, eq=False)
class SparsePattern:
    """Entry `rows[e], columns[e]` is the share `weights[e]` of a query's attention, in order of rows, then columns.

    `causal`: query i sees the keys 0 to i, and what lies above the diagonal does not matter.
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
        """Rows first..last as a matrix."""
        start, stop = np.searchsorted(self.rows, (first, last))
        block = np.zeros((last - first, self.n_keys))
        block[self.rows[start:stop] - first, self.columns[start:stop]] = self.weights[start:stop]
        return block

    def check(self) -> None:
        """Refuse, by the name of the tensor, arrays that are no pattern: files can hold anything."""
        rows, columns, weights = self.rows, self.columns, self.weights
        if (rows < 0).any() or (rows >= self.n).any() or len(np.unique(rows)) < self.n:
            raise FieldError(f"pattern_rows: each of the {self.n} queries needs a key, and there are no others")
        if (columns < 0).any() or (columns >= self.n_keys).any():
            raise FieldError(f"pattern_columns: a key lies outside the {self.n_keys} that there are")
        if (np.diff(rows * self.n_keys + columns) <= 0).any():
            raise FieldError("pattern_columns: entries are not in order, or one stands twice")
        if self.causal and (columns > rows).any():
            raise FieldError("pattern_columns: a query looks into the future, which its causal mask hides")
        sums = np.bincount(rows, weights=weights, minlength=self.n)
        if not (weights > 0).all() or not (np.abs(sums - 1) <= ROW_SUM_SLACK).all():
            raise FieldError("pattern_weights: shares are above 0, and those of a query sum to 1")
