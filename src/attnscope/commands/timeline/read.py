"""Read a run folder, also while it is written: only finished lines are read.

    read_run("run/")                                the whole run as a Timeline
    reader = RunReader("run/"); reader.more()       the looks since the last call

Damaged lines, and lines whose step does not rise, are skipped and named in the notes: one damaged line must not lose a
week of training.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.watch.look import HEADER, Look, read_header
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, neighbour_meant
from attnscope.core.words import count, parsed, ranges

if TYPE_CHECKING:
    import pandas

LOOKS = "looks.jsonl"


@dataclass
class Parsed:
    """Looks in order, the byte at which the line of each ends, bytes in whole lines, and damaged line numbers."""

    looks: list[Look] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    used: int = 0
    damaged: list[int] = field(default_factory=list)


def parse_looks(content: bytes, after: int = -1) -> Parsed:
    """Parse whole lines of looks.jsonl whose steps rise from `after` on."""
    found = Parsed()
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):  # the last piece is unfinished or empty
        found.used += len(line) + 1
        try:
            look = Look.from_json(parsed(line.decode("utf-8")))
        except (UnicodeDecodeError, ValueError, RecursionError):  # a FieldError is a ValueError
            found.damaged.append(number)
            continue
        if look.step <= after:
            found.damaged.append(number)
            continue
        after = look.step
        found.looks.append(look)
        found.ends.append(found.used)
    return found


def is_run(path: Path | str) -> bool:
    """Return whether a path is a folder with a run."""
    return (named_path(path, "run folder") / HEADER).is_file()


def read_run(folder: Path | str) -> Timeline:
    """Read the run in a folder. An unfinished last line is skipped."""
    return _read(named_path(folder, "run folder"))[0]


class RunReader:
    """Follow a run: `more` reads new looks into `timeline`. A run with a new header is read from the start."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = named_path(folder, "run folder")
        self._header = self._stamp()
        self.timeline, self._offset = _read(self.folder)

    def more(self) -> tuple[Look, ...]:
        """Return new looks, and add them to `timeline`; after a resumption, return all looks."""
        content = _content(self.folder, self._offset)
        if content is None or self._stamp() != self._header:
            self._header = self._stamp()
            self.timeline, self._offset = _read(self.folder)
            return self.timeline.looks
        last = self.timeline.looks[-1].step if self.timeline.looks else -1
        found = parse_looks(content, last)
        self._offset += found.used
        self.timeline = replace(self.timeline, looks=(*self.timeline.looks, *found.looks))
        return tuple(found.looks)

    def _stamp(self) -> tuple[int, int]:
        try:
            found = (self.folder / HEADER).stat()
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)


def _read(path: Path) -> tuple[Timeline, int]:
    """Return the run, and how many bytes of its looks are whole lines."""
    if not path.is_dir():
        raise RefusalError(
            f"There is no run folder {path}: give one that `attnscope.watch` wrote.{neighbour_meant(path)}"
        )
    header = read_header(path)
    found = parse_looks(_content(path) or b"")
    notes: tuple[str, ...] = ()
    if found.damaged:
        lines = count(len(found.damaged), "line")
        notes = (f"{lines} of {LOOKS} could not be read and are skipped: {ranges(found.damaged)}.",)
    return Timeline(path.resolve().name, header, tuple(found.looks), notes), found.used


def _content(path: Path, offset: int = 0) -> bytes | None:
    """Return the file of looks from an offset on, or None if it is shorter. A missing file counts as empty."""
    try:
        with (path / LOOKS).open("rb") as stream:
            if os.fstat(stream.fileno()).st_size < offset:
                return None
            stream.seek(offset)
            return stream.read()
    except FileNotFoundError:
        return None if offset else b""
    except OSError as error:
        raise RefusalError(f"{path / LOOKS} cannot be read: {error.strerror or error}.") from error


@dataclass(frozen=True)
class Columns:
    """Thousands of looks in a few hundred columns. Looks `begins[c]` to `ends[c]` (excluded) share column c.

    A mean would hide a spike of one look. So each column shows the number farthest from the median over the run. Such a
    line shows every excursion and looks more restless than a mean; `words` says so.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, looks: int, most: int) -> Columns:
        each = max(1, -(-looks // max(most, 1)))
        begins = np.arange(0, looks, each)
        return cls(begins, np.minimum(begins + each, looks))

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def each(self) -> int:
        """How many looks share a column (the last may have fewer)."""
        return int((self.ends - self.begins).max(initial=1))

    def thin(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reduce [looks, ...] to [columns, ...], keeping the number farthest from the median of its place."""
        if self.each == 1 or not len(numbers):
            return numbers
        known = np.isfinite(numbers)
        empty = ~known.any(axis=0)
        middle = np.nanmedian(np.where(empty, 0.0, np.where(known, numbers, np.nan)), axis=0)
        far = np.where(known, np.abs(np.where(known, numbers, 0.0) - middle), -1.0)
        made = np.empty((len(self), *numbers.shape[1:]))
        for column, (begin, end) in enumerate(zip(self.begins, self.ends, strict=True)):
            place = far[begin:end].argmax(axis=0)
            made[column] = np.take_along_axis(numbers[begin:end], place[None], axis=0)[0]
        return made

    def words(self, looks: int) -> str:
        """Explain the thinning, or return "" if every look has a column."""
        if self.each == 1:
            return ""
        return (
            f"{count(looks, 'look')} are drawn as {len(self):,}: of {self.each} neighbours each place shows the "
            "number farthest from its median over the run, so that no spike is hidden."
        )


COLUMNS = ("run", "step", "loss", "measure", "part", "stack", "site", "layer", "head", "value")


def table(timeline: Timeline) -> pandas.DataFrame:
    """Return a row for each run, look, measure, part, place and head that has a finite number."""
    import pandas

    frames = [_frame(run, key) for run in timeline.runs for key in run.keys]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pandas.DataFrame({name: [] for name in COLUMNS})
    return pandas.concat(frames, ignore_index=True)


def _frame(run: Timeline, key: Key) -> pandas.DataFrame:
    import pandas

    numbers = run.numbers(key)
    there = np.isfinite(numbers)
    places = np.argwhere(there)
    head = places[:, 2] if numbers.ndim == 3 else [None] * len(places)
    measure, part, stack, site = key
    return pandas.DataFrame(
        {
            "run": run.name,
            "step": run.steps[places[:, 0]],
            "loss": run.losses[places[:, 0]],
            "measure": measure,
            "part": part,
            "stack": stack,
            "site": site,
            "layer": places[:, 1],
            "head": pandas.array(head, dtype="Int64"),
            "value": numbers[there],
        }
    )
