"""RunLog: the writer of a run folder.

    log = RunLog.create("run/", header)                 refused where there is a run already
    log = RunLog.resume("run/", header, step=1000)      goes on after step 1000; begins where there is no run
    log.append(look); log.close()

A line is one write at the end of the file. A writer that is killed in the middle leaves at most one line without an
end, which readers leave out and `resume` cuts off. A disk that is full takes back what was written of the line and
raises `RunLogStopped`: the run stays readable up to there, and training need not stop. Nothing is forced to disk before
`close`: what a killed process wrote is safe, what a power cut takes away is the last seconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from attnscope.commands.timeline.read import LOOKS, parse_looks
from attnscope.commands.watch.look import HEADER, Look, RunHeader, read_header
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.words import count

# One writer for a folder: a lock file with the writer's name, held by the system where it can.
#
# The lock is an advisory lock of the kernel on `run.lock`, which ends with its process, however that ends: nothing
# stale is left behind by kill -9, and no other process that was given the same number is taken for the writer. Where
# the file system has no such locks, the number in the file decides: a process that lives on this machine holds the
# folder, and one of another machine does for an hour after it last wrote.

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
SILENT = 3600.0  # seconds after which a writer on another machine counts as gone


class FolderLock:
    """Held from its making until `release`. Children of a fork let go of it, so that they do not outlive the writer."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        while True:
            self._descriptor: int | None = _opened(self.path)
            if not self._take(self._descriptor):
                told = self._told()
                self._drop()
                raise RefusalError(
                    f"{folder} is in use by {told}: wait until that run ends, or give another folder"
                    f" (if no such training runs any more, delete {self.path.name} in it)."
                )
            if self._still_there():
                break
            self._drop()  # who held it before has just taken the file away: ours is a file that nobody can find
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        os.register_at_fork(after_in_child=self._drop)

    def touch(self) -> None:
        """Say that the writer lives, to those on other machines."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def release(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._drop()

    def _take(self, descriptor: int) -> bool:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
            except OSError:  # no such locks here
                pass
        return not _held_by_number(self.path)

    def _still_there(self) -> bool:
        assert self._descriptor is not None
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError:
            return False

    def _told(self) -> str:
        process, host = _writer(self.path)
        if process is None:
            return "another process"
        return f"process {process}" + ("" if host == socket.gethostname() else f" on {host}")

    def _drop(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        why = error.strerror or str(error)
        raise RefusalError(f"{path.parent} cannot be written to ({why}): give another folder.") from error


def _writer(path: Path) -> tuple[int | None, str]:
    try:
        words = path.read_text(errors="replace").split()
    except OSError:
        return None, ""
    number = int(words[0]) if len(words) == 2 and words[0].isdecimal() else None
    return number, words[1] if number is not None else ""


def _held_by_number(path: Path) -> bool:
    process, host = _writer(path)
    if process is None:
        return False
    if host != socket.gethostname():
        return time.time() - path.stat().st_mtime < SILENT
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's, and alive
        return True
    return True


class RunLogStopped(RefusalError):  # noqa: N818  # what happened, and not whose fault
    """Nothing more can be written (the disk is full, the folder is gone). What is there stays readable."""


class RunLog:
    """Made by `create` and `resume`. `kept` are the looks that were there before (none in a new run)."""

    def __init__(self, folder: Path, header: RunHeader, kept: tuple[Look, ...], lock: FolderLock) -> None:
        self.folder = folder
        self.header = header
        self.kept = kept
        self._step = kept[-1].step if kept else -1
        self._lock = lock
        self._stopped: str | None = None
        self._descriptor = os.open(folder / LOOKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    @classmethod
    def create(cls, folder: Path | str, header: RunHeader) -> RunLog:
        """A new run; a folder that holds one already is refused."""
        folder = _made(folder)
        lock = FolderLock(folder)
        try:
            if (folder / HEADER).exists():
                there = len(_read(folder)[0])
                raise RefusalError(
                    f"{folder} already holds a run ({count(there, 'look')}): give another folder, or resume that run."
                )
            header.write(folder)
            return cls(folder, header, (), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(cls, folder: Path | str, header: RunHeader, step: int) -> RunLog:
        """Go on after `step`: later looks are dropped, because those steps are made again."""
        folder = _made(folder)
        if not (folder / HEADER).exists():
            return cls.create(folder, header)
        lock = FolderLock(folder)
        try:
            before = read_header(folder)
            if before.fingerprint != header.fingerprint:
                raise RefusalError(
                    f"{folder} is a run of another model ({before.model}, not {header.model}, or of another shape):"
                    " give a folder of its own to each model."
                )
            looks, ends = _read(folder)
            kept = tuple(look for look in looks if look.step <= step)
            with (folder / LOOKS).open("ab") as stream:
                stream.truncate(ends[len(kept) - 1] if kept else 0)
            joined = replace(
                header,
                measures={**before.measures, **header.measures},
                created=before.created,
                resumed=(*(one for one in before.resumed if one < step), step),
            )
            joined.write(folder)
            return cls(folder, joined, kept, lock)
        except BaseException:
            lock.release()
            raise

    def append(self, look: Look) -> None:
        """One line, whole or absent. Steps rise: one that was there already is a mistake of the caller."""
        if self._stopped is not None:
            raise RunLogStopped(self._stopped)
        if look.step <= self._step:
            raise ValueError(f"a look at step {look.step} cannot follow one at step {self._step}")
        line = look.line()
        before = None
        try:
            before = os.fstat(self._descriptor).st_size
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            if before is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
            why = error.strerror or str(error)
            self._stopped = (
                f"{self.folder / LOOKS} could not be written ({why}): the record ends at step {max(self._step, 0)};"
                " make room there and resume the run to go on."
            )
            self.close()
            raise RunLogStopped(self._stopped) from error
        self._step = look.step
        self._lock.touch()

    def close(self) -> None:
        """Twice does no harm. Nothing can be appended afterwards."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
            self._stopped = self._stopped or f"The run in {self.folder} is closed."
            self._lock.release()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _made(folder: Path | str) -> Path:
    path = named_path(folder, "run folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusalError(
            f"The run folder '{path}' cannot be made ({error.strerror}): choose another place."
        ) from None
    return path


def _read(folder: Path) -> tuple[list[Look], list[int]]:
    """Looks, and where in the file the line of each ends."""
    try:
        content = (folder / LOOKS).read_bytes()
    except FileNotFoundError:
        return [], []
    parsed = parse_looks(content)
    return parsed.looks, parsed.ends
