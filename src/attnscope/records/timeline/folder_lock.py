"""One writer for a folder: a lock file with the writer's name, held by the system where it can.

The lock is an advisory lock of the kernel on `run.lock`, which ends with its process, however that ends: nothing stale
is left behind by kill -9, and no other process that was given the same number is taken for the writer. Where the file
system has no such locks, the number in the file decides: a process that lives on this machine holds the folder, and one
of another machine does for an hour after it last wrote.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from attnscope.core.errors import RefusalError

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
