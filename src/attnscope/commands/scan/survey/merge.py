"""merge(parts) -> Survey: shards of one plan, or surveys of several corpora, made one.

    attnscope.merge("run/shards")                          the store of a job array, when every shard is there
    attnscope.merge(["a/survey.json", "b/survey.json"])    what `a | b` gives

Shards are added up one at a time, in the order of their numbers: memory holds one survey and one shard, however many
there are. Every shard must be there once. No torch here.
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

from attnscope.commands.load import opened
from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.ledger import Missing
from attnscope.commands.scan.survey.packed import SKETCH, SUMS, Arrays, Layout, coded, uncoded, unpack
from attnscope.commands.scan.survey.provenance import counted, merge_provenance
from attnscope.commands.scan.survey.shards import PLAN, SUFFIX, ShardFile, cards_of, differences, from_bytes, weights_of
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.places import Place, is_address, place
from attnscope.core.progress import Advance, silent
from attnscope.core.words import ranges

# Shards added up, one after the other, in the memory of one survey: `Fold().add(shard)` ten thousand times.
#
# Every step is exact (integers are added, minima and maxima kept), so the order of shards cannot be seen in the result;
# they are taken in the order of their numbers all the same. Shards of one layout are summed as arrays; where layouts
# differ (a measure had no place in one, a rare label was seen in another) there is a sum for each, and these few are
# merged as any two surveys are.

_FEWEST_WAITING = 1 << 16  # codes not seen before that wait to be sorted in


class Fold:
    """Mutable on purpose: it is as large as one survey, however many are added."""

    def __init__(self) -> None:
        self._sums: dict[bytes, _Sum] = {}
        self._weights: set[str] = set()  # nearly always one text, or one and that of none

    def add(self, shard: ShardFile) -> None:
        if shard.layout not in self._sums:
            self._sums[shard.layout] = _Sum(Layout.from_bytes(shard.layout))
        self._sums[shard.layout].add(shard.arrays)
        self._weights.add(shard.weights)

    def survey(self, cards: dict[str, Card]) -> Survey:
        """All that was added, without a word on where it comes from."""
        parts = [one.cells() for _, one in sorted(self._sums.items())]
        parts += [weights_of(text) for text in sorted(self._weights)]
        empty = Survey.empty({}, cards)
        return reduce(lambda whole, cells: whole | Survey({}, empty.cards, cells), parts, empty)


class _Sum:
    """Of shards of one layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        size = layout.numbers
        self._counts = {name: np.zeros(size, np.int64) for name in ("count", "nonfinite")}
        self._minimum, self._maximum = np.full(size, np.inf), np.full(size, -np.inf)
        self._peak = np.full(size, -np.inf)
        self._where: dict[str, NDArray[np.int64]] | None = None
        self._sums = {name: _Limbs(size) for name in SUMS}
        self._seen = {name: _Seen() for name in (SKETCH, *(f"tally.{one}" for one in layout.tallies))}

    def add(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in self._counts:
            self._counts[name] += arrays[name]
        np.minimum(self._minimum, arrays["minimum"], out=self._minimum)
        np.maximum(self._maximum, arrays["maximum"], out=self._maximum)
        self._keep_peak(arrays)
        for name, limbs in self._sums.items():
            limbs.add(arrays[f"{name}.limbs"], arrays[f"{name}.low"])
        for name, seen in self._seen.items():
            seen.add(*coded(arrays, name))

    def _keep_peak(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """As `Peak.merge` does: the larger value, and among equal ones the smaller labels."""
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
        for name, seen in self._seen.items():
            arrays |= uncoded(*seen.all(), self._layout.numbers, name)
        return unpack(self._layout, arrays)


class _Limbs:
    """Exact sums in limbs that are never carried; as wide as the exponents that were really there."""

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
        places = (low[rows].astype(np.int64) - self.low + rows * self.limbs.shape[1])[:, None]
        flat = self.limbs.reshape(-1)
        flat[(places + np.arange(limbs.shape[1])).ravel()] += limbs[rows].ravel()


class _Seen:
    """How often each code was seen: sorted codes, and those that are new wait until there are many."""

    def __init__(self) -> None:
        self._codes, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._many = 0

    def add(self, codes: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        if not len(self._codes):
            self._codes, self._counts = codes.copy(), counts.copy()
            return
        place = np.searchsorted(self._codes, codes)
        np.minimum(place, len(self._codes) - 1, out=place)
        known = self._codes[place] == codes
        self._counts[place[known]] += counts[known]  # codes of one shard differ
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
        codes = np.concatenate([self._codes, *(one for one, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(one for _, one in self._waiting)])
        order = np.argsort(codes, kind="stable")  # runs that are sorted already: a merge, not a sort
        codes, counts = codes[order], counts[order]
        first = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
        self._codes, self._counts = codes[first], np.add.reduceat(counts, first)
        self._waiting, self._many = [], 0


Part = str | Path | Survey


def merge(parts: Part | Iterable[Part], *, partial: bool = False, progress: Advance | None = None) -> Survey:
    """One survey of stores, shard files, or surveys and their files. `partial` takes a store whose shards are not all
    there, and says so in the survey's notes."""
    given = [parts] if isinstance(parts, str | Path | Survey) else list(parts)
    if not given:
        raise RefusalError("There is nothing to merge: name a store of shards, shard files, or surveys.")
    shards = [one for one in given if not isinstance(one, Survey) and _holds_shards(one)]
    if not shards:
        return reduce(lambda a, b: a | b, _each_once(given))
    if len(shards) < len(given):
        raise RefusalError("Shards and surveys are not merged together: merge the shards first, then the surveys.")
    return folded(_files(shards), partial=partial, tell=progress or silent)


def folded(files: Iterable[tuple[Place, str]], *, partial: bool = False, tell: Advance = silent) -> Survey:
    """The survey of these shard files, which must be of one plan, and all of them unless `partial`."""
    every = sorted(files, key=lambda one: (one[1], str(one[0])))
    if not every:
        raise RefusalError("There is no finished shard there: run `attnscope scan ... --store` first.")
    fold, missing = Fold(), Missing()
    first: ShardFile | None = None
    origins: dict[str, dict[str, Any]] = {}
    seen: dict[int, str] = {}
    tokens: dict[str, int] = {}
    sequences = 0
    for step, (where, name) in enumerate(every):
        shard = from_bytes(where.read(name), f"{where}/{name}")
        first = first or shard
        _refuse_strangers(first, shard, f"{where}/{name}")
        number = shard.whose.number
        if number in seen:
            raise RefusalError(f"Shard {number} is there twice ({seen[number]} and {where}/{name}): give it once.")
        seen[number] = f"{where}/{name}"
        fold.add(shard)
        missing |= shard.missing
        origins.setdefault(shard.origin, json.loads(shard.origin))
        sequences += shard.sequences
        for stack, count in shard.tokens.items():
            tokens[stack] = tokens.get(stack, 0) + count
        tell("merging shards", step + 1, len(every))
    assert first is not None
    survey = fold.survey(cards_of(first.cards))
    origin = reduce(merge_provenance, (origins[text] for text in sorted(origins)))
    note = _absent(first.whose.of, seen, partial)
    if note:
        origin["notes"] = [*origin.get("notes", ()), note]
    provenance = counted(origin, sequences, tokens.pop(""), tokens)
    return missing.said_of(Survey(provenance, survey.cards, survey.cells))


def _each_once(given: Iterable[Part]) -> Iterator[Survey]:
    """The same survey twice would count every sequence of it twice."""
    seen: set[str] = set()
    for one in given:
        if not isinstance(one, Survey) and not Survey.file_in(named_path(one)).is_file():
            raise RefusalError(
                f"{one} is neither a store of shards nor a survey: name the folder that was the `store=` of the scan, "
                "or the `out=` of scans that are done."
            )
        survey = opened(one, Survey)
        digest = hashlib.sha256(json.dumps(survey.to_json(), sort_keys=True).encode()).hexdigest()
        if digest in seen:
            called = "One survey" if isinstance(one, Survey) else f"The survey {one}"
            raise RefusalError(f"{called} is there twice, and each of its sequences would be too: give it once.")
        seen.add(digest)
        yield survey


def _holds_shards(one: str | Path) -> bool:
    if is_address(one):
        return str(one).endswith(SUFFIX) or _is_store(place(one))
    path = Path(one).expanduser()
    return path.name.endswith(SUFFIX) or (path.is_dir() and _is_store(place(path)))


def _is_store(where: Place) -> bool:
    names = where.names()
    return PLAN in names or any(name.endswith(SUFFIX) for name in names)


def _files(given: Iterable[str | Path]) -> Iterator[tuple[Place, str]]:
    for one in given:
        if str(one).endswith(SUFFIX):
            folder, _, name = str(one).rpartition("/")
            yield place(folder or "."), name
        else:
            where = place(one)
            yield from ((where, name) for name in where.names() if name.endswith(SUFFIX))


def _refuse_strangers(first: ShardFile, shard: ShardFile, name: str) -> None:
    if shard.whose.digest != first.whose.digest:
        raise RefusalError(
            f"{name} is a shard of another plan than {first.whose.name} "
            f"({differences(first.whose.plan, shard.whose.plan)}): merge shards of one plan only."
        )
    if shard.cards != first.cards:
        raise RefusalError(f"{name} has other measures than {first.whose.name}: scan all shards with one version.")


def _absent(of: int, seen: dict[int, str], partial: bool) -> str:
    """A note where shards are missing and that is allowed."""
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
