"""`attnscope.merge`: merge the shards of one plan, or surveys of several corpora. Needs no torch.

Shards are added one at a time: memory holds one survey and one shard. Every step is exact (integers are added, minima
and maxima kept), so the order of shards does not matter. Shards of one layout are summed as arrays. If layouts differ
(a measure had no place in one shard, a rare label occurs in another) each has its own sum, and these few are merged as
any two surveys are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.records import opened
from attnscope.commands.scan.survey.builder import NotMeasured
from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.packed import SKETCH, SUMS, Arrays, Layout, coded, uncoded, unpack
from attnscope.commands.scan.survey.provenance import counted, merge_provenance
from attnscope.commands.scan.survey.shards import PLAN, SUFFIX, ShardFile, cards_of, differences, from_bytes, weights_of
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.folders import Folder, is_address, open_folder
from attnscope.core.progress import Advance, silent
from attnscope.core.words import ranges

_FEWEST_WAITING = 1 << 16  # new codes that wait before they are sorted in


class ShardMerger:
    """Adds shards in the memory of one survey."""

    def __init__(self) -> None:
        self._sums: dict[bytes, _LayoutSum] = {}
        self._weights: set[str] = set()  # usually one text, and the empty one

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
            for name, mine in self._where.items():  # sorted, as the labels of a layout are
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
    """Exact sums in limbs that are never carried, as wide as the exponents that occur."""

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
    """Counts codes. Known codes are sorted; new ones wait until there are many."""

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
        order = np.argsort(codes, kind="stable")  # fast, because the pieces are sorted
        codes, counts = codes[order], counts[order]
        first = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
        self._codes, self._counts = codes[first], np.add.reduceat(counts, first)
        self._waiting, self._many = [], 0


Mergeable = str | Path | Survey


def merge(parts: Mergeable | Iterable[Mergeable], *, partial: bool = False, progress: Advance | None = None) -> Survey:
    """Merge shards of one plan, or surveys of several corpora, into one survey.

    Parameters
    ----------
    parts : str, Path, Survey, or iterable of these
        Stores and shard files, or surveys and their files.
    partial : bool
        Accept a store with missing shards, and say so in the notes of the survey.
    progress : callable, optional
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Survey
        The sums are exact, so the order of parts does not matter.

    Raises
    ------
    RefusalError
        If shards are missing, a part is given twice, plans differ, or shards and surveys are mixed.

    Examples
    --------
    >>> survey = attnscope.merge(attnscope.scan("pocket", samples=4, seed=seed) for seed in (0, 1))
    """
    all_parts = [parts] if isinstance(parts, str | Path | Survey) else list(parts)
    if not all_parts:
        raise RefusalError("There is nothing to merge: name a store of shards, shard files, or surveys.")
    shards = [part for part in all_parts if not isinstance(part, Survey) and _holds_shards(part)]
    if not shards:
        return reduce(lambda a, b: a | b, _each_once(all_parts))
    if len(shards) < len(all_parts):
        raise RefusalError("Shards and surveys are not merged together: merge the shards first, then the surveys.")
    return merge_shards(_files(shards), partial=partial, tell=progress or silent)


def merge_shards(files: Iterable[tuple[Folder, str]], *, partial: bool = False, tell: Advance = silent) -> Survey:
    """Merge shard files of one plan; refuse missing shards unless `partial`."""
    every = sorted(files, key=lambda file: (file[1], str(file[0])))
    if not every:
        raise RefusalError("There is no finished shard there: run `attnscope scan ... --store` first.")
    merger, not_measured = ShardMerger(), NotMeasured()
    first: ShardFile | None = None
    origins: dict[str, dict[str, Any]] = {}
    seen: dict[int, str] = {}
    tokens: dict[str, int] = {}
    sequences = 0
    for step, (where, name) in enumerate(every):
        shard = from_bytes(where.read(name), f"{where}/{name}")
        first = first or shard
        _refuse_strangers(first, shard, f"{where}/{name}")
        number = shard.shard_id.number
        if number in seen:
            raise RefusalError(f"Shard {number} is there twice ({seen[number]} and {where}/{name}): give it once.")
        seen[number] = f"{where}/{name}"
        merger.add(shard)
        not_measured |= shard.missing
        origins.setdefault(shard.origin, json.loads(shard.origin))
        sequences += shard.sequences
        for stack, count in shard.tokens.items():
            tokens[stack] = tokens.get(stack, 0) + count
        tell("merging shards", step + 1, len(every))
    assert first is not None
    survey = merger.survey(cards_of(first.cards))
    origin = reduce(merge_provenance, (origins[text] for text in sorted(origins)))
    note = _missing_note(first.shard_id.of, seen, partial)
    if note:
        origin["notes"] = [*origin.get("notes", ()), note]
    provenance = counted(origin, sequences, tokens.pop(""), tokens)
    return not_measured.added_to(Survey(provenance, survey.cards, survey.cells))


def _each_once(parts: Iterable[Mergeable]) -> Iterator[Survey]:
    """Yield the surveys; refuse one that is given twice, since its sequences would count twice."""
    seen: set[str] = set()
    for part in parts:
        if not isinstance(part, Survey) and not Survey.file_in(named_path(part)).is_file():
            raise RefusalError(
                f"{part} is neither a store of shards nor a survey: name the folder that was the `store=` of the scan, "
                "or the `out=` of scans that are done."
            )
        survey = opened(part, Survey)
        digest = hashlib.sha256(json.dumps(survey.to_json(), sort_keys=True).encode()).hexdigest()
        if digest in seen:
            called = "One survey" if isinstance(part, Survey) else f"The survey {part}"
            raise RefusalError(f"{called} is there twice, so its sequences would count twice: give it once.")
        seen.add(digest)
        yield survey


def _holds_shards(part: str | Path) -> bool:
    if str(part).endswith(SUFFIX):
        return True
    if not is_address(part) and not Path(part).expanduser().is_dir():
        return False
    names = open_folder(part).names()
    return PLAN in names or any(name.endswith(SUFFIX) for name in names)


def _files(parts: Iterable[str | Path]) -> Iterator[tuple[Folder, str]]:
    for part in parts:
        if str(part).endswith(SUFFIX):
            parent, _, name = str(part).rpartition("/")
            yield open_folder(parent or "."), name
        else:
            folder = open_folder(part)
            yield from ((folder, name) for name in folder.names() if name.endswith(SUFFIX))


def _refuse_strangers(first: ShardFile, shard: ShardFile, name: str) -> None:
    if shard.shard_id.digest != first.shard_id.digest:
        raise RefusalError(
            f"{name} is a shard of another plan than {first.shard_id.name} "
            f"({differences(first.shard_id.plan, shard.shard_id.plan)}): merge shards of one plan only."
        )
    if shard.cards != first.cards:
        raise RefusalError(f"{name} has other measures than {first.shard_id.name}: scan all shards with one version.")


def _missing_note(of: int, seen: dict[int, str], partial: bool) -> str:
    """Return a note on missing shards, or refuse them unless `partial`."""
    absent = [number for number in range(of) if number not in seen]
    if not absent:
        return ""
    one = len(absent) == 1
    words = f"{'Shard' if one else 'Shards'} {ranges(absent)} of {of} (counted from 0)"
    if not partial:
        raise RefusalError(
            f"{words} {'is' if one else 'are'} missing: run the scan again with the same `store=`, which does those "
            "only, or merge what is there with `partial=True`."
        )
    return f"{words} {'was' if one else 'were'} not there when this survey was merged."
