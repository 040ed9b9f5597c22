"""Read a run folder, also while it is written: only whole lines are read.

    read_run("run/")                                the whole run as a Timeline
    reader = RunReader("run/"); reader.more()       the looks since the last call

A line that does not match its checksum, or is damaged in another way, is skipped and named in the notes; no other line
is lost. Lines that a damaged line end joins are read one by one. A last line without its end is read if it fits its
checksum; otherwise a note says that it is left out. Lines from before there were checksums may have damaged steps: the
longest sequence of lines with rising steps is read.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.timeline.record import Key, Timeline, check_look
from attnscope.commands.watch.look import HEADER, Look, RunHeader, read_header
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, neighbour_meant
from attnscope.core.hashes import log_lines, unchecked
from attnscope.core.words import count, parsed, ranges

if TYPE_CHECKING:
    import pandas

LOOKS = "looks.jsonl"
DAMAGED, DROPPED = f"{LOOKS}.damaged", f"{LOOKS}.dropped"  # what `RunLog.resume` cut off


@dataclass
class Parsed:
    """Looks in order, the byte at which each look's line ends, the number of whole lines and bytes, damaged lines.

    `endless` if the last line lacks its end but was used; `unfinished` if there is a last line that is not whole.
    """

    looks: list[Look] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    lines: int = 0
    used: int = 0
    damaged: list[int] = field(default_factory=list)  # line numbers, from 1
    damaged_spans: list[tuple[int, int]] = field(default_factory=list)  # first byte, byte after the last
    endless: bool = False
    unfinished: bool = False


def parse_looks(content: bytes, after: int = -1, header: RunHeader | None = None) -> Parsed:
    """Parse whole lines of looks.jsonl whose steps rise from `after` on. `header` says which numbers are possible."""
    lines = list(log_lines(content))
    found = Parsed(unfinished=bool(lines) and not lines[-1].whole)
    lines = lines[:-1] if found.unfinished else lines
    looks = [_look(content[line.start : line.stop], header) for line in lines]
    readable = [number for number, look in enumerate(looks) if look is not None and look.step > after]
    rising = _longest_rising([look.step for number in readable if (look := looks[number]) is not None])
    kept = {readable[position] for position in rising}
    for number, (line, look) in enumerate(zip(lines, looks, strict=True)):
        if look is not None and number in kept:
            found.looks.append(look)
            found.ends.append(line.end)
        else:
            found.damaged += [line.number] if line.number not in found.damaged[-1:] else []
            found.damaged_spans.append((line.start, line.end))
    if lines:
        found.lines, found.used = lines[-1].number, lines[-1].end
        found.endless = not content[: found.used].endswith(b"\n")
    return found


def _look(line: bytes, header: RunHeader | None) -> Look | None:
    try:
        look = Look.from_json(parsed(unchecked(line).decode("utf-8")))
        if header is not None:
            check_look(header, look)
    except (UnicodeDecodeError, ValueError, RecursionError):  # a FieldError is a ValueError
        return None
    return look


def _longest_rising(steps: list[int]) -> list[int]:
    """Return the positions of a longest strictly rising subsequence; of equal steps, the first."""
    ends: list[int] = []  # the smallest last step of a rising subsequence of each length
    last: list[int] = []  # its position
    before: list[int] = []  # the position that precedes each position in its subsequence
    for position, step in enumerate(steps):
        length = bisect_left(ends, step)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(step)
            last.append(position)
        elif step < ends[length]:
            ends[length], last[length] = step, position
    positions = []
    position = last[-1] if last else -1
    while position >= 0:
        positions.append(position)
        position = before[position]
    return positions[::-1]


def is_run(path: Path | str) -> bool:
    """Return whether a path is a folder with a run."""
    return (named_path(path, "run folder") / HEADER).is_file()


def read_run(folder: Path | str) -> Timeline:
    """Read the run in a folder. An unfinished last line is left out, and a note says so."""
    return _read(named_path(folder, "run folder"))[0]


class RunReader:
    """Follows a run: `more` reads new looks into `timeline`. If the header changed, the run is read from the start."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = named_path(folder, "run folder")
        self._header = self._stamp()
        self.timeline, self._parsed = _read(self.folder)

    def more(self) -> tuple[Look, ...]:
        """Return new looks, and add them to `timeline`; after a resumption, return all looks."""
        before = self._parsed
        content = _content(self.folder, before.used)
        if content is None or self._stamp() != self._header:
            self._header = self._stamp()
            self.timeline, self._parsed = _read(self.folder)
            return self.timeline.looks
        last = self.timeline.looks[-1].step if self.timeline.looks else -1
        if before.endless and content.startswith(b"\n"):  # the line end that was missing
            content, before.used, before.endless = content[1:], before.used + 1, False
        found = parse_looks(content, last, self.timeline.header)
        before.damaged += [before.lines + number for number in found.damaged]
        before.used, before.lines = before.used + found.used, before.lines + found.lines
        before.endless, before.unfinished = found.endless or (before.endless and not content), found.unfinished
        notes = _notes(self.folder, before)
        self.timeline = replace(self.timeline, looks=(*self.timeline.looks, *found.looks), notes=notes)
        return tuple(found.looks)

    def _stamp(self) -> tuple[int, int]:
        try:
            found = (self.folder / HEADER).stat()
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)


def _read(path: Path) -> tuple[Timeline, Parsed]:
    """Return the run and its parsed lines."""
    if not path.is_dir():
        raise RefusalError(
            f"There is no run folder {path}: give one that `attnscope.watch` wrote.{neighbour_meant(path)}"
        )
    header = read_header(path)
    found = parse_looks(_content(path) or b"", header=header)
    return Timeline(path.resolve().name, header, tuple(found.looks), _notes(path, found)), found


def _notes(path: Path, found: Parsed) -> tuple[str, ...]:
    """Return sentences on lines that could not be read, on an unfinished one, and on those that `resume` moved away."""
    notes, damaged = [], found.damaged
    if damaged:
        are = "is" if len(damaged) == 1 else "are"
        notes.append(
            f"{count(len(damaged), 'line')} of {LOOKS} could not be read and {are} skipped: {ranges(damaged)}."
        )
    if found.unfinished:
        notes.append(f"The last line of {LOOKS} is unfinished: one look is left out.")
    with contextlib.suppress(OSError):
        moved = (path / DAMAGED).read_bytes().count(b"\n")
        notes.append(f"{count(moved, 'damaged line')} of {LOOKS} {'is' if moved == 1 else 'are'} kept in {DAMAGED}.")
    return tuple(notes)


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
    """Thins thousands of looks to a few hundred columns. Looks `begins[c]` to `ends[c]` (excluded) share column c. Each
    column shows the number farthest from the median over the run, because a mean would hide a spike of one look. Such a
    line looks noisier than a mean; `words` explains it.
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
        """Return a sentence on the thinning, or "" if every look has its own column."""
        if self.each == 1:
            return ""
        return (
            f"{count(looks, 'look')} are drawn in {len(self):,} columns: of {self.each} neighbouring looks, each "
            "column shows the value farthest from the median of the run, so that no spike is hidden."
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
