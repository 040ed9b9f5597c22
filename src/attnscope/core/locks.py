"""FolderLock: admits one writer to a folder.

    lock = FolderLock(folder, "run.lock")       refuses in one sentence if another process holds it
    lock.release()

It is an advisory lock of the kernel on a file in the folder. It ends with its process, so kill -9 leaves nothing stale,
and a reused process number is never taken for the writer. If the file system has no such locks, the process number in
the file decides: a living process on this machine holds the folder, one on another machine for an hour after it last
wrote.
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

_LONGEST_NUMBER = 18  # digits of a process id
SILENT = 3600.0  # seconds without a write after which a writer on another machine counts as dead


class FolderLock:
    """Held from construction to `release`. A forked child closes its copy, so that the lock ends with the writer."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        while True:
            self._descriptor: int | None = _opened(self.path)
            self._file = os.fstat(self._descriptor)
            if not self._take(self._descriptor):
                holder = self._holder()
                self._drop()
                raise RefusalError(
                    f"{folder} is in use by {holder}: wait until it ends, or give another folder"
                    f" (if no such process runs any more, delete {self.path.name} in it)."
                )
            if self._still_there():
                break
            self._drop()  # the previous holder has just removed the file that we locked
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise _unwritable(self.path, error) from error
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
        return not held_by_number(self.path)

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
        """Close the descriptor, unless somebody closed it already and its number belongs to another file."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._descriptor), self._file):
                    os.close(self._descriptor)
            self._descriptor = None


def refuse_in_use(folder: Path, name: str) -> None:
    """Refuse a folder that another process holds, before anything is said or done."""
    if (folder / name).exists():
        FolderLock(folder, name).release()


def held_by_number(path: Path) -> bool:
    """Return whether the process that a lock file names is alive, as far as can be known."""
    process, host = _writer(path)
    if process is None:
        return False
    if host != socket.gethostname():
        return time.time() - path.stat().st_mtime < SILENT
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # alive, and of another user
        pass
    return True


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> RefusalError:
    why = error.strerror or str(error)
    return RefusalError(f"{path.parent} cannot be written to ({why}): give another folder.")


def _writer(path: Path) -> tuple[int | None, str]:
    try:
        words = path.read_text(errors="replace").split()
    except OSError:
        return None, ""
    possible = len(words) == 2 and words[0].isdecimal() and len(words[0]) <= _LONGEST_NUMBER
    number = int(words[0]) if possible else None
    return number, words[1] if number is not None else ""
