"""A pattern: the attention that a head should have, as a sparse right-stochastic matrix.

Rows are queries, columns are keys; entry (i, j) is the share of query i's attention that goes to key j, so rows sum
to 1. A pattern is stored as three arrays (compressed sparse rows), sorted by key inside each row. `causal` says that
query i sees only keys 0..i: the model masks entries above the diagonal, so a head may have any logits there.

`Pattern.of` checks the entries, so every pattern is valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from attnscope.core.errors import RefusalError
from attnscope.heads.facts import ROW_SUM_SLACK, SparsePattern

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Indices = Int[np.ndarray, " entry"]
Shares = Float[np.ndarray, " entry"]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A valid pattern: `starts[i]:starts[i+1]` is the slice of `columns` and `weights` that belongs to row i."""

    starts: Int[np.ndarray, " row_plus_one"]
    columns: Indices
    weights: Shares
    n_keys: int
    causal: bool = False
    name: str = "pattern"

    def __repr__(self) -> str:
        return f"Pattern({self.name!r}, {self.n} x {self.n_keys}, k={self.k}{', causal' if self.causal else ''})"

    @property
    def n(self) -> int:
        """The number of rows (queries)."""
        return len(self.starts) - 1

    @property
    def k(self) -> int:
        """The number of entries in the fullest row."""
        return int(self.counts.max())

    @cached_property
    def counts(self) -> Int[np.ndarray, " row"]:
        """The number of entries in each row."""
        return np.diff(self.starts)

    @cached_property
    def rows(self) -> Indices:
        """The row of every entry."""
        return np.repeat(np.arange(self.n), self.counts)

    @property
    def free(self) -> bool:
        """Whether no query sees a key off its support, so that nothing can leak."""
        return bool((self.counts == self.visible).all())

    @cached_property
    def visible(self) -> Int[np.ndarray, " row"]:
        """The number of keys that each query sees."""
        return np.minimum(np.arange(self.n) + 1, self.n_keys) if self.causal else np.full(self.n, self.n_keys)

    @property
    def k_columns(self) -> int:
        """The number of entries in the fullest column."""
        return int(np.bincount(self.columns, minlength=self.n_keys).max())

    @property
    def spread(self) -> float:
        """The largest ratio of two entries of one row (gamma of arXiv:2106.03764)."""
        highest = np.maximum.reduceat(self.weights, self.starts[:-1])
        return float((highest / np.minimum.reduceat(self.weights, self.starts[:-1])).max())

    def padded(self) -> tuple[Int[np.ndarray, "row k"], Float[np.ndarray, "row k"], Bool[np.ndarray, "row k"]]:
        """Return support, weights and the mask of used places as matrices. Unused places repeat a row's first key."""
        place = np.arange(len(self.columns)) - self.starts[self.rows]
        support = np.repeat(self.columns[self.starts[:-1], None], self.k, axis=1)
        weights = np.ones((self.n, self.k))
        real = np.zeros((self.n, self.k), dtype=bool)
        support[self.rows, place], weights[self.rows, place], real[self.rows, place] = self.columns, self.weights, True
        return support, weights, real

    def entries(self) -> SparsePattern:
        """Return the pattern as the plain arrays that records store."""
        return SparsePattern(self.name, self.n, self.n_keys, self.causal, self.rows, self.columns, self.weights)

    @classmethod
    def from_entries(cls, kept: SparsePattern) -> Pattern:
        """Undo `entries` bit for bit, without checking or normalising again."""
        starts = np.searchsorted(kept.rows, np.arange(kept.n + 1))
        return cls(starts, kept.columns, kept.weights, kept.n_keys, kept.causal, kept.name)

    def with_entries(self, rows: Indices, columns: Indices, weights: Shares, name: str = "pattern") -> Pattern:
        """Return a pattern of the same size and mask with other entries; each row is divided by its sum."""
        entries, n, n_keys = (rows, columns, weights), self.n, self.n_keys
        return Pattern.of(*entries, n=n, n_keys=n_keys, causal=self.causal, normalise=True, name=name)

    def part(self, rows: np.ndarray, keys: np.ndarray) -> Pattern:
        """Return some rows and keys as a pattern of their own; each row is divided by its sum."""
        left = self.sparse()[rows][:, keys].tocoo()
        n, n_keys = left.shape
        return Pattern.of(left.row, left.col, left.data, n=n, n_keys=n_keys, causal=self.causal, normalise=True)

    def sparse(self) -> csr_array:
        from scipy.sparse import csr_array

        return csr_array((self.weights, self.columns, self.starts), shape=(self.n, self.n_keys))

    def dense(self) -> Float[np.ndarray, "row key"]:
        return np.asarray(self.sparse().toarray())

    @classmethod
    def of(
        cls,
        rows: Indices,
        columns: Indices,
        weights: Shares,
        *,
        n: int,
        n_keys: int | None = None,
        causal: bool = False,
        normalise: bool = False,
        name: str = "pattern",
    ) -> Pattern:
        """Return the pattern with these entries, in any order. Zeros are ignored. A refusal names the wrong entry."""
        n_keys = n if n_keys is None else n_keys
        if n < 1 or n_keys < 1:
            raise RefusalError("The pattern has no rows: give it at least one query and one key.")
        outside = (rows < 0) | (rows >= n) | (columns < 0) | (columns >= n_keys)
        future = (columns > rows) & (weights > 0) & causal
        for bad, problem in (
            (outside, f"lies outside a pattern of {n} x {n_keys}: check the size."),
            (~np.isfinite(weights), "is not a finite number: attention weights are shares between 0 and 1."),
            (weights < 0, "is negative: attention weights are shares between 0 and 1."),
            (future, "looks into the future, which a causal mask hides: drop it, or leave `causal=` out."),
        ):
            if bad.any():
                at = int(np.argmax(bad))
                raise RefusalError(f"Entry ({rows[at]}, {columns[at]}) {problem}")
        keep = weights > 0
        order = np.lexsort((columns[keep], rows[keep]))
        rows, columns, weights = rows[keep][order], columns[keep][order], weights[keep][order].astype(np.float64)
        twice = np.flatnonzero((np.diff(rows) == 0) & (np.diff(columns) == 0))
        if len(twice):
            at = twice[0]
            raise RefusalError(f"Entry ({rows[at]}, {columns[at]}) appears twice: give every entry once.")
        counts = np.bincount(rows, minlength=n)
        if (counts == 0).any():
            empty = int(np.argmin(counts))
            raise RefusalError(f"Row {empty} is empty, and a query cannot attend to nothing: give it a key.")
        starts = np.concatenate([[0], np.cumsum(counts)])
        if normalise:  # divide by the largest first: the sum of two large weights may overflow
            weights = weights / np.maximum.reduceat(weights, starts[:-1])[rows]
        sums = np.bincount(rows, weights=weights, minlength=n)
        worst = int(np.argmax(np.abs(sums - 1)))
        if not normalise and abs(sums[worst] - 1) > ROW_SUM_SLACK:
            raise RefusalError(
                f"Row {worst} sums to {sums[worst]:.6g}, not to 1: normalise the rows, or pass `normalise=True`."
            )
        weights = weights / sums[rows]
        if not weights.all():
            at = int(np.argmin(weights))
            raise RefusalError(
                f"Entry ({rows[at]}, {columns[at]}) is too small beside the others of its row for a share: drop it."
            )
        return cls(starts, columns, weights, n_keys, causal, name)
