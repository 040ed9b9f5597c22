"""The page of one look: what measures said of every sequence, summed so that pages of several processes add up.

The number of a place is the mean over sequences; of what is dangerous where it is largest (a logit, a spike) it is the
largest. Both of a whole batch follow from those of its parts, whichever process had them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from attnscope.records.timeline.look import Values

LARGEST = ("max_logit", "spike")  # of these the largest over sequences counts, not the mean
Array = NDArray[np.float64]
Place = tuple[str, str, str, str, int]  # measure, part, stack, site, layer


@dataclass(frozen=True)
class Entry:
    """Of one place: the sum over sequences, how many they were, and the largest of them; `[]` or `[head]`."""

    total: Array
    count: int
    largest: Array

    @classmethod
    def of(cls, values: Array) -> Entry:
        return cls(np.asarray(values.sum(axis=0)), len(values), np.asarray(values.max(axis=0)))

    def merge(self, other: Entry) -> Entry:
        total, largest = self.total + other.total, np.maximum(self.largest, other.largest)
        return Entry(np.asarray(total), self.count + other.count, np.asarray(largest))


@dataclass
class Page:
    """Written by an `Observer`. `tokens` are those of the batch that the loop trained on."""

    entries: dict[Place, Entry] = field(default_factory=dict)
    tokens: int = 0

    def observe(
        self,
        measure: str,
        part: str,
        stack: str,
        site: str,
        layer: int,
        values: np.ndarray,
        where: Mapping[str, np.ndarray] | None = None,  # noqa: ARG002  # a look keeps numbers, not places
        samples: np.ndarray | None = None,  # noqa: ARG002
    ) -> None:
        place = (measure, part, stack, site, layer)
        entry, before = Entry.of(values), self.entries.get(place)
        self.entries[place] = entry if before is None else before.merge(entry)

    def values(self) -> tuple[Values, ...]:
        """One array for each measure, part, stack and site: row l is layer l, NaN where nothing is known."""
        columns: dict[tuple[str, str, str, str], dict[int, Array]] = {}
        for (*key, layer), entry in self.entries.items():
            number = entry.largest if key[0] in LARGEST else entry.total / max(entry.count, 1)
            columns.setdefault((key[0], key[1], key[2], key[3]), {})[layer] = np.asarray(number)
        return tuple(Values.of(*key, _stacked(rows)) for key, rows in columns.items())


def merged(pages: Iterable[Page]) -> Page:
    """The page of a whole batch. Numbers of training (gradients, updates) are the same in every process."""
    whole = Page()
    for page in pages:
        for place, entry in page.entries.items():
            before = whole.entries.get(place)
            whole.entries[place] = entry if before is None else before.merge(entry)
        whole = replace(whole, tokens=whole.tokens + page.tokens)
    return whole


def _stacked(rows: Mapping[int, Array]) -> Array:
    width = max(row.size for row in rows.values()) if any(row.ndim for row in rows.values()) else 0
    table = np.full((max(rows) + 1, width) if width else (max(rows) + 1,), np.nan)
    for layer, row in rows.items():
        if width:
            table[layer, : row.size] = row
        else:
            table[layer] = row
    return table
