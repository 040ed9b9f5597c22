"""Counts of integer labels, for a whole vector of heads at once: a sparse, exactly mergeable counter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from attnscope.stats.moments import Shape

# A (cell, label) pair is one sortable int64: 23 bits of cell, 40 bits of signed label.
LABEL_BITS = 40
OFFSET = 1 << (LABEL_BITS - 1)


@dataclass(frozen=True, eq=False)
class Tally:
    """`codes` are sorted and unique, `counts` are positive: two equal tallies have equal arrays."""

    shape: Shape
    codes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def empty(cls, shape: Shape = ()) -> Tally:
        return cls(shape, np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of(
        cls, labels: Int[np.ndarray, " batch *shape"], keep: Bool[np.ndarray, " batch *shape"] | None = None
    ) -> Tally:
        """Count labels. Labels whose `keep` is False are ignored."""
        shape = labels.shape[1:]
        flat = labels.astype(np.int64).reshape(len(labels), math.prod(shape))
        codes = (np.arange(flat.shape[1], dtype=np.int64) << LABEL_BITS) + (flat + OFFSET)
        chosen, labelled = codes.ravel(), flat.ravel()
        if keep is not None and not keep.all():
            chosen, labelled = chosen[keep.ravel()], labelled[keep.ravel()]
        if labelled.size and (labelled.min() < -OFFSET or labelled.max() >= OFFSET):
            raise ValueError(f"labels must fit in {LABEL_BITS} bits")
        chosen.sort()  # like np.unique, but faster: a scan makes hundreds of small tallies
        first = np.flatnonzero(np.diff(chosen, prepend=chosen[:1] - 1))
        return cls(shape, chosen[first], np.diff(first, append=len(chosen)))

    def merge(self, other: Tally) -> Tally:
        if self.shape != other.shape:
            raise ValueError(f"tallies of shape {self.shape} and {other.shape} do not merge")
        codes, place = np.unique(np.concatenate([self.codes, other.codes]), return_inverse=True)
        counts = np.zeros(len(codes), np.int64)
        np.add.at(counts, place, np.concatenate([self.counts, other.counts]))
        return Tally(self.shape, codes, counts)

    def part(self, number: int) -> Tally:
        """Return one entry along the first axis."""
        shape = self.shape[1:]
        first = (number * math.prod(shape)) << LABEL_BITS
        start, stop = np.searchsorted(self.codes, [first, first + (math.prod(shape) << LABEL_BITS)])
        return Tally(shape, self.codes[start:stop] - first, self.counts[start:stop].copy())

    def cells(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return each cell's labels in rising order, and their counts; cells in flat order."""
        edges = np.arange(math.prod(self.shape) + 1, dtype=np.int64) << LABEL_BITS
        starts = np.searchsorted(self.codes, edges)
        labels = (self.codes & ((1 << LABEL_BITS) - 1)) - OFFSET
        return [(labels[a:b], self.counts[a:b]) for a, b in pairwise(starts)]

    def most_common(self) -> list[tuple[int, float] | None]:
        """Return each cell's most frequent label (the smallest of ties) and its share; None if empty."""
        return [
            (int(labels[counts.argmax()]), float(counts.max() / counts.sum())) if len(labels) else None
            for labels, counts in self.cells()
        ]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tally)
            and self.shape == other.shape
            and np.array_equal(self.codes, other.codes)
            and np.array_equal(self.counts, other.counts)
        )

    def to_json(self) -> list[list[int]]:
        """Return `[label, count, step, count, ...]` for each cell: steps between labels are shorter than labels."""
        rows = []
        for labels, counts in self.cells():
            row = np.empty(2 * len(labels), np.int64)
            row[0::2] = np.diff(labels, prepend=0)
            row[1::2] = counts
            rows.append(row.tolist())
        return rows

    @classmethod
    def from_json(cls, data: Sequence[Sequence[int]], shape: Shape) -> Tally:
        if len(data) != math.prod(shape):
            raise ValueError("a tally has one row for each cell")
        codes, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for cell, row in enumerate(data):
            pairs = np.asarray(row, dtype=np.int64).reshape(-1, 2)
            if (pairs[1:, 0] <= 0).any() or (pairs[:, 1] <= 0).any():
                raise ValueError("labels rise and counts are positive")
            codes.append((cell << LABEL_BITS) + np.cumsum(pairs[:, 0]) + OFFSET)
            counts.append(pairs[:, 1])
        return cls(shape, np.concatenate(codes), np.concatenate(counts))
