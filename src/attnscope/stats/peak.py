"""The largest value seen and where: token, channel, key, sample. Merging keeps one winner, in any order.

Ties go to the smallest labels (in the order of their names), so the winner does not depend on the order of merging.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from attnscope.stats.moments import Shape, floats_from_json, floats_to_json, whole_from_json

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Peak:
    """The largest value of each cell and its labels; a cell without values has value -inf and labels -1."""

    value: NDArray[np.float64]
    where: dict[str, NDArray[np.int64]]

    @classmethod
    def empty(cls, shape: Shape = ()) -> Peak:
        return cls(np.full(shape, -np.inf), {})

    @classmethod
    def of(
        cls, values: Float[np.ndarray, " batch *shape"], where: Mapping[str, Int[np.ndarray, " batch *shape"]]
    ) -> Peak:
        """Return the largest finite value over the batch. Labels have the shape of the values."""
        shape = values.shape[1:]
        if not len(values):
            return cls.empty(shape)
        flat = values.astype(np.float64).reshape(len(values), math.prod(shape))
        flat = np.where(np.isfinite(flat), flat, -np.inf) + 0.0  # -0.0 becomes 0.0
        value = flat.max(axis=0)
        tied = flat == value
        if np.count_nonzero(tied) == len(value):  # no ties, the usual case
            row, column = flat.argmax(axis=0), np.arange(len(value))
            seen = ~np.isneginf(value)
            labels = {n: np.broadcast_to(where[n], values.shape).reshape(flat.shape) for n in sorted(where)}
            winners = {n: np.where(seen, label[row, column], NOWHERE) for n, label in labels.items()}
            return cls(value.reshape(shape), {n: label.reshape(shape) for n, label in winners.items()})
        winners = {}
        for name in sorted(where):
            label = np.broadcast_to(where[name], values.shape).reshape(flat.shape)
            smallest = np.where(tied, label, np.iinfo(np.int64).max).min(axis=0)
            tied &= label == smallest
            winners[name] = np.where(np.isneginf(value), NOWHERE, smallest).reshape(shape)
        return cls(value.reshape(shape), winners)

    @property
    def shape(self) -> Shape:
        return self.value.shape

    def part(self, number: int) -> Peak:
        """Return one entry along the first axis."""
        cell, shape = slice(number, number + 1), self.shape[1:]
        where = {name: label[cell].reshape(shape) for name, label in self.where.items()}
        return Peak(self.value[cell].reshape(shape), where)

    def merge(self, other: Peak) -> Peak:
        """Merge two peaks. A label that one side lacks counts as -1 there."""
        if self.shape != other.shape:
            raise ValueError(f"peaks of shape {self.shape} and {other.shape} do not merge")
        nowhere = np.full(self.shape, NOWHERE, np.int64)
        names = sorted({*self.where, *other.where})
        mine = [self.where.get(n, nowhere) for n in names]
        theirs = [other.where.get(n, nowhere) for n in names]
        wins = np.asarray(other.value > self.value)
        open_ = np.asarray(other.value == self.value)
        for a, b in zip(mine, theirs, strict=True):
            wins = wins | (open_ & (b < a))
            open_ = open_ & (b == a)
        where = {n: np.where(wins, b, a) for n, a, b in zip(names, mine, theirs, strict=True)}
        return Peak(np.where(wins, other.value, self.value), where)

    def places(self) -> list[dict[str, int] | None]:
        """Return the labels of each cell's peak, in flat order; None for a cell without values or labels."""
        rows = []
        for cell, value in enumerate(self.value.flat):
            known = {n: int(label.flat[cell]) for n, label in self.where.items() if label.flat[cell] != NOWHERE}
            rows.append(known if known and np.isfinite(value) else None)
        return rows

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Peak)
            and np.array_equal(self.value, other.value)
            and self.where.keys() == other.where.keys()
            and all(np.array_equal(self.where[n], other.where[n]) for n in self.where)
        )

    def to_json(self) -> dict[str, Any]:
        return {"value": floats_to_json(self.value), "where": {n: w.tolist() for n, w in self.where.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], shape: Shape) -> Peak:
        where = {n: whole_from_json(w).reshape(shape) for n, w in data["where"].items()}
        return cls(floats_from_json(data["value"], shape), where)


# Counts of integer labels, for a whole vector of heads at once: a sparse, exactly mergeable counter.

# A (cell, label) pair is one sortable int64: 23 bits of cell, 40 bits of signed label.
LABEL_BITS = 40
OFFSET = 1 << (LABEL_BITS - 1)


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts of labels. `codes` are sorted and unique, `counts` positive, so equal tallies have equal arrays."""

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
        """Return the labels of each cell in ascending order with their counts, cells in flat order."""
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
        """Return `[label, count, step, count, ...]` for each cell: steps between labels are shorter numbers."""
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
            pairs = whole_from_json(row).reshape(-1, 2)
            if (pairs[1:, 0] <= 0).any() or (pairs[:, 1] <= 0).any():
                raise ValueError("labels rise and counts are positive")
            codes.append((cell << LABEL_BITS) + np.cumsum(pairs[:, 0]) + OFFSET)
            counts.append(pairs[:, 1])
        return cls(shape, np.concatenate(codes), np.concatenate(counts))
