"""A model of a disk that loses power: which files there can be afterwards, from a recorded list of operations.

The disk keeps what was forced to it, and of the rest whatever it likes:

- The content of a file that was not fsynced is the content of the last fsync, the newest content, half of what was
  added since, or zeros in place of it.
- A name that was made, removed or changed since the last fsync of its folder is as before or as after, each for itself
  and in any order.

This is weaker than what ext4, xfs and btrfs promise, so what holds here holds there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path

from tests.hardening.disk import Operation

Tree = Mapping[str, bytes]
ALL_SUBSETS = 5  # of this many pending changes all combinations are tried, of more those that differ in one
MOST_CONTENTS = 64


@dataclass
class _File:
    synced: bytes = b""
    now: bytes = b""

    def possible(self) -> list[bytes]:
        if self.synced == self.now:
            return [self.now]
        common = min(len(self.synced), len(self.now))
        half = self.now[: common + (len(self.now) - common) // 2]
        zeros = self.now[:common] + bytes(len(self.now) - common)
        return list(dict.fromkeys([self.synced, self.now, half, zeros]))


@dataclass(frozen=True)
class _Change:
    """A pending change of names: what is removed, and what is set to which file (0 is a folder)."""

    folder: Path
    removed: Path | None = None
    added: Path | None = None
    inode: int = 0


@dataclass
class PowerCuts:
    """Replays operations; `states` are the trees there can be after a cut now."""

    root: Path
    names: dict[Path, int] = field(default_factory=dict)  # on disk
    files: dict[int, _File] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)
    _live: dict[Path, int] = field(default_factory=dict)  # as the process sees it
    _inodes: dict[int, int] = field(default_factory=dict)  # numbers of the system are used again: ours are not

    def begin(self) -> None:
        """Take what is in the folder as being on disk."""
        for path in sorted(self.root.rglob("*")):
            self._new(path, path.stat().st_ino, path.read_bytes() if path.is_file() else None)
            self.names[path] = self._live[path]
            if path.is_file():
                self.files[self._live[path]].synced = path.read_bytes()

    def _new(self, path: Path, inode: int, content: bytes | None) -> int:
        number = len(self._inodes) + len(self.files) + 1 if content is not None else 0
        while number in self.files:
            number += 1
        if content is not None:
            self.files[number] = _File(now=content)
            self._inodes[inode] = number
        self._live[path] = number
        return number

    def replay(self, operation: Operation) -> None:
        kind, path = operation.kind, operation.path
        if kind == "mkdir":
            self._new(path, operation.inode, None)
            self.pending.append(_Change(path.parent, added=path))
        elif kind in ("open", "write", "truncate") and operation.content is not None:
            if path not in self._live:
                number = self._new(path, operation.inode, operation.content)
                self.pending.append(_Change(path.parent, added=path, inode=number))
            self.files[self._live[path]].now = operation.content
        elif kind == "fsync":
            if operation.content is None:
                self._sync_names(path)
            else:
                if path not in self._live:  # written by code that calls no function of Python
                    number = self._new(path, operation.inode, operation.content)
                    self.pending.append(_Change(path.parent, added=path, inode=number))
                file = self.files[self._live[path]]
                file.synced = file.now = operation.content
        elif kind == "rename":
            self._rename(operation)
        elif kind in ("unlink", "rmdir"):
            self._live.pop(path, None)
            self.pending.append(_Change(path.parent, removed=path))

    def _rename(self, operation: Operation) -> None:
        source, target = operation.path, operation.target
        assert target is not None
        moved = self._live.pop(source, 0)
        self._live[target] = moved
        self.pending.append(_Change(target.parent, source, target, moved))
        if operation.content is None:  # a folder: its files were written under its draft's name
            for path in [path for path in self._live if path.is_relative_to(source)]:
                new = target / path.relative_to(source)
                self._live[new] = self._live.pop(path)
            for path, inode, content in operation.inside:
                if path not in self._live:  # written by code that calls no function of Python
                    number = self._new(path, inode, content)
                    self.pending.append(_Change(path.parent, added=path, inode=number))
            self.names = {_moved(path, source, target): number for path, number in self.names.items()}
            self.pending = [
                _Change(
                    _moved(change.folder, source, target),
                    change.removed if change.removed is None else _moved(change.removed, source, target),
                    change.added if change.added is None else _moved(change.added, source, target),
                    change.inode,
                )
                if change.folder.is_relative_to(source)
                else change
                for change in self.pending
            ]

    def _sync_names(self, folder: Path) -> None:
        for change in [change for change in self.pending if change.folder == folder]:
            _apply(self.names, change)
        self.pending = [change for change in self.pending if change.folder != folder]

    def states(self) -> Iterator[Tree]:
        """Yield the possible trees, by relative path."""
        for chosen in _choices(len(self.pending)):
            names = dict(self.names)
            for change, kept in zip(self.pending, chosen, strict=True):
                if kept:
                    _apply(names, change)
            there = {path: number for path, number in names.items() if number and self._reached(path, names)}
            dirty = [number for number in set(there.values()) if len(self.files[number].possible()) > 1]
            contents = product(*(self.files[number].possible() for number in dirty))
            for content in islice(contents, MOST_CONTENTS):
                now = dict(zip(dirty, content, strict=True))
                yield {
                    str(path.relative_to(self.root)): now.get(number, self.files[number].now)
                    for path, number in there.items()
                }

    def _reached(self, path: Path, names: Mapping[Path, int]) -> bool:
        return all(parent in names for parent in path.parents if parent != self.root and self.root in parent.parents)


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if path.is_relative_to(source) else path


def _apply(names: dict[Path, int], change: _Change) -> None:
    if change.removed is not None:
        names.pop(change.removed, None)
    if change.added is not None:
        names[change.added] = change.inode


def _choices(pending: int) -> Iterator[Sequence[bool]]:
    """Yield which of the pending changes reached the disk."""
    if pending <= ALL_SUBSETS:
        yield from product((False, True), repeat=pending)
        return
    for first in (False, True):
        yield [first] * pending
        for odd in range(pending):
            yield [first != (odd == position) for position in range(pending)]
    for length in range(1, pending):
        yield [position < length for position in range(pending)]
