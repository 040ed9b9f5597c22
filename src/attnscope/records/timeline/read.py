"""Reading a run folder, also while it is written: only lines that have their end are read.

    read_run("run/")                    the whole run as a Timeline
    reader = RunReader("run/"); reader.more()       the looks that came since it was last asked

A line that cannot be read, or whose step does not rise, is left out and said so in the notes: one damaged line must not
take a week of training away.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from attnscope.core.errors import RefusalError
from attnscope.core.named_path import named_path, neighbour_meant
from attnscope.core.visible import parsed
from attnscope.core.words import count, ranges
from attnscope.records.timeline.header import HEADER, read_header
from attnscope.records.timeline.look import Look
from attnscope.records.timeline.timeline import Timeline

LOOKS = "looks.jsonl"


@dataclass
class Parsed:
    """Looks in order; where in the content the line of each ends; how many bytes were whole lines; bad lines."""

    looks: list[Look] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    used: int = 0
    damaged: list[int] = field(default_factory=list)


def parse_looks(content: bytes, after: int = -1) -> Parsed:
    """Whole lines of looks.jsonl whose steps rise from `after` on."""
    found = Parsed()
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):  # behind the last end: half-written, or nothing
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
    """Whether a path is a folder that holds a run."""
    return (named_path(path, "run folder") / HEADER).is_file()


def read_run(folder: Path | str) -> Timeline:
    """The run in a folder as a record. A half-written last line is left out."""
    return _read(named_path(folder, "run folder"))[0]


class RunReader:
    """Follows a run: `timeline` is what is known of it, `more` reads on where it stopped. A run that was resumed lost
    its last looks and has a new header, and is read again from its beginning."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = named_path(folder, "run folder")
        self._header = self._stamp()
        self.timeline, self._offset = _read(self.folder)

    def more(self) -> tuple[Look, ...]:
        """New looks, which `timeline` has from now on; after a resumption all that are there."""
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
    """The run, and how many bytes of its looks were whole lines."""
    if not path.is_dir():
        raise RefusalError(
            f"There is no run folder {path}: give one that `attnscope.watch` wrote.{neighbour_meant(path)}"
        )
    header = read_header(path)
    found = parse_looks(_content(path) or b"")
    notes: tuple[str, ...] = ()
    if found.damaged:
        lines = count(len(found.damaged), "line")
        notes = (f"{lines} of {LOOKS} could not be read, and left out: {ranges(found.damaged)}.",)
    return Timeline(path.resolve().name, header, tuple(found.looks), notes), found.used


def _content(path: Path, offset: int = 0) -> bytes | None:
    """What stands in the file of looks from an offset on; None where it is shorter. No file is an empty one."""
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
