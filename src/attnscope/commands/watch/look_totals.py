"""Totals of one look over the sequences of a batch, and their sum over training processes.

The value of a place is the mean over sequences. For measures whose maximum is dangerous (logits, spikes) it is the
maximum. Both can be computed from totals of parts of a batch, so all processes get the same numbers, the same alarms
and the same clipped heads. Only rank 0 writes. A look exchanges a few thousand numbers through the process group of the
training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from attnscope.commands.watch.values import Values

MAXIMUM = ("max_logit", "spike")  # measures that are reduced over sequences by their maximum
Array = NDArray[np.float64]
Kept = TypeVar("Kept")
Place = tuple[str, str, str, str, int]  # measure, part, stack, site, block


@dataclass(frozen=True)
class Total:
    """Sum, count and maximum over the sequences at one place; the arrays are `[]` or `[head]`."""

    total: Array
    count: int
    largest: Array

    @classmethod
    def of(cls, values: Array) -> Total:
        return cls(np.asarray(values.sum(axis=0)), len(values), np.asarray(values.max(axis=0)))

    def merge(self, other: Total) -> Total:
        total, largest = self.total + other.total, np.maximum(self.largest, other.largest)
        return Total(np.asarray(total), self.count + other.count, np.asarray(largest))


@dataclass
class LookTotals:
    """The totals of one look, filled by an `Observer`. `tokens` counts the tokens of the training batch."""

    entries: dict[Place, Total] = field(default_factory=dict)
    tokens: int = 0

    def observe(
        self,
        measure: str,
        part: str,
        stack: str,
        site: str,
        layer: int,
        values: np.ndarray,
        where: Mapping[str, np.ndarray] | None = None,  # noqa: ARG002  # a look keeps no token positions
        samples: np.ndarray | None = None,  # noqa: ARG002
    ) -> None:
        self.add((measure, part, stack, site, layer), Total.of(values))

    def add(self, place: Place, total: Total) -> None:
        earlier = self.entries.get(place)
        self.entries[place] = total if earlier is None else earlier.merge(total)

    def values(self) -> tuple[Values, ...]:
        """Return one array per measure, part, stack and site; row b is block b, NaN where nothing was measured."""
        tables: dict[tuple[str, str, str, str], dict[int, Array]] = {}
        for (*key, block), entry in self.entries.items():
            number = entry.largest if key[0] in MAXIMUM else entry.total / max(entry.count, 1)
            tables.setdefault((key[0], key[1], key[2], key[3]), {})[block] = np.asarray(number)
        return tuple(Values.of(*key, _stacked(rows)) for key, rows in tables.items())


def _stacked(rows: Mapping[int, Array]) -> Array:
    width = max(row.size for row in rows.values()) if any(row.ndim for row in rows.values()) else 0
    table = np.full((max(rows) + 1, width) if width else (max(rows) + 1,), np.nan)
    for block, row in rows.items():
        if width:
            table[block, : row.size] = row
        else:
            table[block] = row
    return table


def distributed() -> bool:
    """Return whether several processes train one model together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_writer() -> bool:
    """Return whether this process writes the record."""
    return not distributed() or dist.get_rank() == 0


def gather_totals(totals: LookTotals, *, same_batch: bool) -> LookTotals:
    """Return the totals of the whole batch. With `same_batch` (a probe), return the totals of rank 0."""
    if not distributed():
        return totals
    parts: list[LookTotals] = _gather(totals)
    whole = parts[0] if same_batch else LookTotals()
    for part in () if same_batch else parts:
        for place, total in part.entries.items():
            whole.add(place, total)
    whole.tokens = sum(part.tokens for part in parts)
    return whole


def gather_mean(value: float | None) -> float | None:
    """Return the mean over processes, or None if one of them has no value."""
    if not distributed():
        return value
    known = _gather(value)
    return None if None in known else sum(known) / len(known)


def from_first(value: Kept) -> Kept:
    """Return the value of the first process, so that all processes judge the same numbers."""
    if not distributed():
        return value
    first: Kept = _gather(value)[0]
    return first


def gather_max(numbers: Tensor) -> Tensor:
    if distributed():
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    return numbers


def _gather(value: Any) -> list[Any]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, value)
    return parts
