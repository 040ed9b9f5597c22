"""A disk that fails: every file operation under one folder is counted, recorded, and can be made to fail.

    with Disk(folder) as disk: act()                              disk.operations: what was done, in order
    with Disk(folder, fail_at=3, how="ENOSPC") as disk: act()     the third operation raises OSError
    with Disk(folder, fail_at=3, how="stop") as disk: act()       the process stops there: `Stopped`

Operations are opening for writing, writing, truncating, fsync, closing, renaming, removing, and making folders. `os`,
`io` and the writer of safetensors are replaced, so attnscope runs as it is. A write that fails has written half of its
bytes, as on a disk that runs full. After `Stopped` nothing more reaches the disk: `finally` blocks run, and their
operations do nothing, as if the process were gone.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import safetensors.torch
from safetensors import SafetensorError

How = Literal["ENOSPC", "EIO", "stop"]
DEAD_PROCESS = 2**22 + 12345  # above the largest process number of Linux: its drafts are those of a dead writer
_WRITING = os.O_WRONLY | os.O_RDWR
_REAL = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}


class Stopped(BaseException):  # not an error: the process ends here
    """The simulated end of the process."""


@dataclass(frozen=True)
class Operation:
    """One operation. `content` is that of the file afterwards, `target` the new name after a rename."""

    kind: str
    path: Path
    inode: int = 0
    content: bytes | None = None
    target: Path | None = None
    inside: tuple[tuple[Path, int, bytes], ...] = ()  # all files of a renamed folder

    def __str__(self) -> str:
        return f"{self.kind} {self.path.name}"


class Disk:
    def __init__(self, root: Path, fail_at: int | None = None, how: How = "EIO") -> None:
        self.root = root.resolve()
        self.fail_at, self.how = fail_at, how
        self.operations: list[Operation] = []
        self.begun = 0  # operations, with the one that failed
        self.failed: str | None = None
        self.stopped = False
        self._paths: dict[int, Path] = {}  # of open descriptors
        self._streams: dict[int, Path] = {}  # of open streams, which close themselves
        self._patches = ExitStack()
        self._serialize = safetensors.torch.serialize_file

    def __enter__(self) -> Disk:
        replaced: dict[str, Callable[..., Any]] = {
            **{"open": self._open, "close": self._close, "write": self._write, "pwrite": self._pwrite},
            **{"fsync": self._fsync, "ftruncate": self._ftruncate, "replace": self._rename, "rename": self._rename},
            **{name: self._change(name) for name in ("mkdir", "unlink", "remove", "rmdir")},
            "getpid": lambda: DEAD_PROCESS,
        }
        for name, function in replaced.items():
            self._patches.enter_context(patch.object(os, name, function))
        for module in (io, builtins):
            self._patches.enter_context(patch.object(module, "open", self._io_open))
        self._patches.enter_context(patch.object(safetensors.torch, "serialize_file", self._serialize_file))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()
        if self.stopped:  # the system closes the files of a process that ends, which frees its locks
            for number in self._paths:
                with contextlib.suppress(OSError):
                    _REAL["close"](number)

    def mark(self, words: str) -> None:
        """Record that something was promised to the caller here."""
        self.operations.append(Operation("mark", Path(words)))

    def inside(self, path: Any, dir_fd: int | None = None) -> Path | None:
        """Return the whole path if the disk watches it."""
        if isinstance(path, int):
            return self._paths.get(path)
        whole = Path(os.fsdecode(path))
        if dir_fd is not None:
            whole = Path(f"/proc/self/fd/{dir_fd}").readlink() / whole
        whole = Path(os.path.abspath(whole))  # noqa: PTH100  # links are renamed and removed as themselves
        return whole if whole.is_relative_to(self.root) else None

    def perform(
        self, kind: str, path: Path, act: Callable[[], Any], half: Callable[[], Any] | None = None, **record: Any
    ) -> Any:
        """Do and record one operation, or fail in its place."""
        if self.stopped:
            raise Stopped
        self.begun += 1
        if self.begun == self.fail_at:
            self.failed = f"{kind} {path.name}"
            if half is not None:
                half()
            if self.how == "stop":
                self.stopped = True
                raise Stopped
            code = getattr(errno, self.how)
            named = [str(path)] if kind in ("open", "mkdir", "unlink", "rmdir", "rename") else []
            raise OSError(code, os.strerror(code), *named)
        answer = act()
        self._record(kind, path, **record)
        return answer

    def _record(self, kind: str, path: Path, target: Path | None = None) -> None:
        now = target or path
        inode, content, inside = 0, None, []
        if kind not in ("unlink", "rmdir", "close"):
            inode = now.stat().st_ino
            if now.is_file():
                content = _content(now)
            elif kind == "rename":
                inside = [(file, file.stat().st_ino, _content(file)) for file in now.rglob("*") if file.is_file()]
        self.operations.append(Operation(kind, path, inode, content, target, tuple(inside)))

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        whole = self.inside(path, dir_fd)

        def act() -> int:
            number: int = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
            if whole is not None and (flags & _WRITING or whole.is_dir()):
                self._paths[number] = whole
            return number

        if whole is None or not flags & _WRITING:
            return act()
        opened: int = self.perform("open", whole, act)
        return opened

    def _close(self, number: int) -> None:
        path = self._paths.pop(number, None)
        _REAL["close"](number)  # it is closed even if closing fails
        if path is not None and not self.stopped and not path.is_dir():
            self.perform("close", path, lambda: None)

    def _write(self, number: int, content: Any) -> int:
        return self._written(number, content, lambda data: _REAL["write"](number, data))

    def _pwrite(self, number: int, content: Any, offset: int) -> int:
        return self._written(number, content, lambda data: _REAL["pwrite"](number, data, offset))

    def _written(self, number: int, content: Any, write: Callable[[Any], int]) -> int:
        path = self._paths.get(number)
        if path is None:
            return write(content)
        whole = bytes(content)
        return int(self.perform("write", path, lambda: write(whole), lambda: write(whole[: len(whole) // 2])))

    def _fsync(self, number: Any) -> None:
        number = number if isinstance(number, int) else number.fileno()
        path = self.inside(Path(f"/proc/self/fd/{number}").readlink())  # a file may be open for reading only
        if path is None:
            _REAL["fsync"](number)
        else:
            self.perform("fsync", path, lambda: None)  # nothing here survives the test, so it need not be slow

    def _ftruncate(self, number: int, length: int) -> None:
        path = self._paths.get(number)
        if path is None:
            _REAL["ftruncate"](number, length)
        else:
            self.perform("truncate", path, lambda: _REAL["ftruncate"](number, length))

    def _rename(self, path: Any, target: Any) -> None:
        whole, new = self.inside(path), self.inside(target)
        if whole is None or new is None:
            _REAL["rename"](path, target)
        else:
            self.perform("rename", whole, lambda: _REAL["rename"](path, target), target=new)

    def _change(self, name: str) -> Callable[..., None]:
        def change(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
            whole = self.inside(path, dir_fd)

            def act() -> None:
                _REAL[name](path, *args, dir_fd=dir_fd, **kwargs)

            act() if whole is None else self.perform("unlink" if name == "remove" else name, whole, act)

        return change

    def _io_open(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        whole = self.inside(file) if not set("wax+").isdisjoint(mode) else None
        if whole is None:
            return _OPEN(file, mode, buffering, *args, **kwargs)
        raw_mode = mode.replace("b", "").replace("t", "")
        if isinstance(file, int):
            raw = _Raw(self, whole, file, raw_mode)
            del self._paths[file]
        else:
            raw = self.perform("open", whole, lambda: _Raw(self, whole, file, raw_mode))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **kwargs)

    def _serialize_file(self, tensors: Any, filename: Any, metadata: Any = None) -> None:
        """Write the file of safetensors, whose compiled code calls no function that could be replaced."""
        whole = self.inside(filename)
        if whole is None:
            self._serialize(tensors, filename, metadata)
            return

        def half() -> None:
            self._serialize(tensors, filename, metadata)
            os.truncate(filename, whole.stat().st_size // 2)

        try:
            self.perform("write", whole, lambda: self._serialize(tensors, filename, metadata), half)
        except OSError as error:
            raise SafetensorError(f"Error while serializing: I/O error: {error}") from None


_OPEN = io.open


class _Raw(io.FileIO):
    """The unbuffered part of a file that is open for writing."""

    def __init__(self, disk: Disk, path: Path, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._disk, self._path = disk, path
        disk._streams[self.fileno()] = path

    def write(self, content: Any) -> int:
        if self._disk.stopped:
            return len(content)  # a buffer that is emptied after the end
        whole = bytes(content)
        really = super().write
        half = whole[: len(whole) // 2]
        return int(self._disk.perform("write", self._path, lambda: really(whole), lambda: really(half)))

    def truncate(self, size: int | None = None) -> int:
        really = super().truncate
        return int(self._disk.perform("truncate", self._path, lambda: really(size)))

    def close(self) -> None:
        if self.closed:
            return
        self._disk._streams.pop(self.fileno(), None)
        super().close()
        if not self._disk.stopped:
            self._disk.perform("close", self._path, lambda: None)


def _content(path: Path) -> bytes:
    with _OPEN(path, "rb") as stream:
        content: bytes = stream.read()
    return content
