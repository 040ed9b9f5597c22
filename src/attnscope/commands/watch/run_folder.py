"""RunLog: the writer of a run folder, with a lock that admits one writer.

    log = RunLog.create("run/", header)                 refuses a folder that holds a run
    log = RunLog.resume("run/", header, step=1000)      continues after step 1000, or creates the run
    log.append(look); log.close()

A line is one write at the end of the file. A writer that is killed in the middle leaves at most one line without an
end, which readers skip and `resume` cuts off. If the disk is full, the half-written line is cut off and `RunLogStopped`
is raised: the run stays readable, and training need not stop. Nothing is forced to disk before `close`: a killed
process loses nothing, a power cut the last seconds.

The lock is an advisory lock of the kernel on `run.lock`. It ends with its process, so kill -9 leaves nothing stale, and
a reused process number is never taken for the writer. If the file system has no such locks, the process number in the
file decides: a living process on this machine holds the folder, one on another machine for an hour after it last wrote.
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

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
SILENT = 3600.0  # seconds without a write after which a writer on another machine counts as dead


class FolderLock:
    """Held from construction to `release`. Forked children drop it, so that they do not outlive the writer."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        while True:
            self._descriptor: int | None = _opened(self.path)
            if not self._take(self._descriptor):
                holder = self._holder()
                self._drop()
                raise RefusalError(
                    f"{folder} is in use by {holder}: wait until that run ends, or give another folder"
                    f" (if no such training runs any more, delete {self.path.name} in it)."
                )
            if self._still_there():
                break
            self._drop()  # the previous holder has just removed the file that we locked
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        os.register_at_fork(after_in_child=self._drop)

    def touch(self) -> None:
        """Show other machines that the writer is alive."""
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
            except OSError:  # the file system has no locks
                pass
        return not _held_by_number(self.path)

    def _still_there(self) -> bool:
        assert self._descriptor is not None
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError:
            return False

    def _holder(self) -> str:
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
    except OSError:  # alive, and of another user
        pass
    return True


class RunLogStopped(RefusalError):  # noqa: N818  # a state, not a fault of the caller
    """Nothing more can be written (the disk is full, the folder was removed). The record so far stays readable."""


class RunLog:
    """Made by `create` and `resume`. `kept` holds the earlier looks of a resumed run."""

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
        """Start a new run; refuse a folder that holds one."""
        folder = _made(folder)
        lock = FolderLock(folder)
        try:
            if (folder / HEADER).exists():
                looks = count(len(_read(folder)[0]), "look")
                raise RefusalError(f"{folder} already holds a run ({looks}): give another folder, or resume that run.")
            header.write(folder)
            return cls(folder, header, (), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(cls, folder: Path | str, header: RunHeader, step: int) -> RunLog:
        """Continue after `step`. Later looks are dropped, because those steps run again."""
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
                resumed=(*(earlier for earlier in before.resumed if earlier < step), step),
            )
            joined.write(folder)
            return cls(folder, joined, kept, lock)
        except BaseException:
            lock.release()
            raise

    def append(self, look: Look) -> None:
        """Append one whole line or nothing. Raise ValueError if the step does not rise."""
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
        """End the record. Calling it twice is safe."""
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
    """Return the looks, and the byte at which the line of each ends."""
    try:
        content = (folder / LOOKS).read_bytes()
    except FileNotFoundError:
        return [], []
    parsed = parse_looks(content)
    return parsed.looks, parsed.ends
