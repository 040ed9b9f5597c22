"""Add up the shards of one plan as arrays.

Every step is exact (integers are added, minima and maxima kept), so the order of shards does not matter. Shards of one
layout are summed as arrays. If layouts differ (one shard lacks a measure, or has a rare label), each layout has its own
sum, and the sums are merged like surveys.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.packed import SKETCH, SUMS, Arrays, Layout, coded, uncoded, unpack
from attnscope.commands.scan.survey.shard_check import weights_of
from attnscope.commands.scan.survey.shards import ShardFile
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card

_FEWEST_WAITING = 1 << 16  # number of new codes that are held before they are sorted in


class ShardMerger:
    """Adds up shards, using no more memory than one survey."""

    def __init__(self) -> None:
        self._sums: dict[bytes, _LayoutSum] = {}
        self._weights: set[str] = set()  # usually one text and the empty text

    def add(self, shard: ShardFile) -> None:
        if shard.layout not in self._sums:
            self._sums[shard.layout] = _LayoutSum(Layout.from_bytes(shard.layout))
        self._sums[shard.layout].add(shard.arrays)
        self._weights.add(shard.weights)

    def survey(self, cards: dict[str, Card]) -> Survey:
        """Return the survey of all shards, without provenance."""
        parts = [total.cells() for _, total in sorted(self._sums.items())]
        parts += [weights_of(text) for text in sorted(self._weights)]
        empty = Survey.empty({}, cards)
        return reduce(lambda whole, cells: whole | Survey({}, empty.cards, cells), parts, empty)


class _LayoutSum:
    """The sum of shards of one layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        size = layout.numbers
        self._counts = {name: np.zeros(size, np.int64) for name in ("count", "nonfinite")}
        self._minimum, self._maximum = np.full(size, np.inf), np.full(size, -np.inf)
        self._peak = np.full(size, -np.inf)
        self._where: dict[str, NDArray[np.int64]] | None = None
        self._sums = {name: _Limbs(size) for name in SUMS}
        self._counters = {name: _CodeCounter() for name in (SKETCH, *(f"tally.{label}" for label in layout.tallies))}

    def add(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in self._counts:
            self._counts[name] += arrays[name]
        np.minimum(self._minimum, arrays["minimum"], out=self._minimum)
        np.maximum(self._maximum, arrays["maximum"], out=self._maximum)
        self._keep_peak(arrays)
        for name, limbs in self._sums.items():
            limbs.add(arrays[f"{name}.limbs"], arrays[f"{name}.low"])
        for name, counter in self._counters.items():
            counter.add(*coded(arrays, name))

    def _keep_peak(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the larger value, and among equal ones the smaller labels, as `Peak.merge` does."""
        value = arrays["peak"]
        theirs = {name: arrays[f"peak.{name}"] for name in self._layout.labels}
        if self._where is None:
            self._peak, self._where = value.copy(), {name: label.copy() for name, label in theirs.items()}
            return
        wins, tied = value > self._peak, value == self._peak
        if tied.any():
            for name, mine in self._where.items():  # in sorted order
                wins |= tied & (theirs[name] < mine)
                tied &= theirs[name] == mine
        np.copyto(self._peak, value, where=wins)
        for name, mine in self._where.items():
            np.copyto(mine, theirs[name], where=wins)

    def cells(self) -> dict[Key, Cell]:
        arrays: Arrays = {
            **self._counts,
            "minimum": self._minimum,
            "maximum": self._maximum,
            "peak": self._peak,
            **{f"peak.{name}": label for name, label in (self._where or {}).items()},
        }
        for name, sums in self._sums.items():
            arrays[f"{name}.limbs"], arrays[f"{name}.low"] = sums.limbs, np.full(self._layout.numbers, sums.low)
        for name, counter in self._counters.items():
            arrays |= uncoded(*counter.all(), self._layout.numbers, name)
        return unpack(self._layout, arrays)


class _Limbs:
    """Exact sums in limbs without carries. The number of limbs grows with the range of exponents."""

    def __init__(self, size: int) -> None:
        self.limbs = np.zeros((size, 0), np.int64)
        self.low = 0

    def add(self, limbs: NDArray[Any], low: NDArray[Any]) -> None:
        used = limbs.any(axis=1)
        if not used.any():
            return
        first, end = int(low[used].min()), int(low[used].max()) + limbs.shape[1]
        if not self.limbs.shape[1]:
            self.low = first
        before, after = max(self.low - first, 0), max(end - self.low - self.limbs.shape[1], 0)
        if before or after:
            self.limbs = np.pad(self.limbs, ((0, 0), (before, after)))
            self.low -= before
        rows = np.flatnonzero(used)
        starts = (low[rows].astype(np.int64) - self.low + rows * self.limbs.shape[1])[:, None]
        flat = self.limbs.reshape(-1)
        flat[(starts + np.arange(limbs.shape[1])).ravel()] += limbs[rows].ravel()


class _CodeCounter:
    """Counts codes. Known codes are kept sorted; new codes are sorted in when there are many."""

    def __init__(self) -> None:
        self._codes, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._many = 0

    def add(self, codes: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        if not len(self._codes):
            self._codes, self._counts = codes.copy(), counts.copy()
            return
        index = np.searchsorted(self._codes, codes)
        np.minimum(index, len(self._codes) - 1, out=index)
        known = self._codes[index] == codes
        self._counts[index[known]] += counts[known]  # codes of one shard are unique
        if not known.all():
            self._waiting.append((codes[~known], counts[~known]))
            self._many += len(self._waiting[-1][0])
            if self._many > max(_FEWEST_WAITING, len(self._codes) // 2):
                self._sort_in()

    def all(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._sort_in()
        return self._codes, self._counts

    def _sort_in(self) -> None:
        if not self._waiting:
            return
        codes = np.concatenate([self._codes, *(codes for codes, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
        order = np.argsort(codes, kind="stable")  # fast, because the pieces are sorted already
        codes, counts = codes[order], counts[order]
        first = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
        self._codes, self._counts = codes[first], np.add.reduceat(counts, first)
        self._waiting, self._many = [], 0
