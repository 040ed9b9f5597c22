"""The largest value seen and where: token, channel, key, sample. Merging keeps one winner, in any order.

Ties go to the smallest labels (in the order of their names), so the winner does not depend on the order of merging.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from attnscope.stats.exact import floats_from_json, floats_to_json
from attnscope.stats.moments import Shape

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Peak:
    """`value` is -inf and labels are -1 for a cell without values."""

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
            found = {n: np.where(seen, label[row, column], NOWHERE) for n, label in labels.items()}
            return cls(value.reshape(shape), {n: label.reshape(shape) for n, label in found.items()})
        found = {}
        for name in sorted(where):
            label = np.broadcast_to(where[name], values.shape).reshape(flat.shape)
            smallest = np.where(tied, label, np.iinfo(np.int64).max).min(axis=0)
            tied &= label == smallest
            found[name] = np.where(np.isneginf(value), NOWHERE, smallest).reshape(shape)
        return cls(value.reshape(shape), found)

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
        where = {n: np.asarray(w, dtype=np.int64).reshape(shape) for n, w in data["where"].items()}
        return cls(floats_from_json(data["value"], shape), where)
