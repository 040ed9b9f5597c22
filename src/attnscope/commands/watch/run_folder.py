"""RunLog: the writer of a run folder, with a lock that allows one writer.

    log = RunLog.create("run/", header)                 refuses a folder that holds a run
    log = RunLog.resume("run/", header, step=1000)      continues after step 1000, or creates the run
    log.append(look); log.close()

A line is one write at the end of the file, with a checksum. A writer that is killed in the middle leaves at most one
unfinished line, which readers leave out and `resume` cuts off. If the disk is full, the half-written line is cut off
and `RunLogStopped` is raised: the run stays readable, and training need not stop. A look is forced to disk if a second
has passed since the last forced look: a killed process loses nothing, and a power cut loses the looks of one second.

`resume` cuts off only the end of the file, and moves what it cuts beside it: damaged lines to looks.jsonl.damaged,
looks after the step and an unfinished line to looks.jsonl.dropped. Damaged lines before the step stay where they are.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from attnscope.commands.timeline.read import DAMAGED, DROPPED, LOOKS, Parsed, parse_looks
from attnscope.commands.watch.look import HEADER, Look, RunHeader, read_header
from attnscope.core.errors import RefusalError
from attnscope.core.files import make_folders, named_path, sync_folder
from attnscope.core.hashes import append_whole, keep_beside
from attnscope.core.locks import FolderLock
from attnscope.core.words import count

LOCK = "run.lock"
SYNC_SECONDS = 1.0  # looks within this time after the last forced look are not forced to disk


class RunLogStopped(RefusalError):  # noqa: N818  # a state, not a fault of the caller
    """Raised if nothing more can be written (the disk is full, the folder was removed). The record so far stays
    readable."""


class RunLog:
    """The writer of a run, made by `create` or `resume`. `kept` holds the earlier looks of a resumed run."""

    def __init__(self, folder: Path, header: RunHeader, kept: tuple[Look, ...], lock: FolderLock) -> None:
        self.folder = folder
        self.header = header
        self.kept = kept
        self._step = kept[-1].step if kept else -1
        self._lock = lock
        self._stopped: str | None = None
        self._synced = -SYNC_SECONDS  # when a look was last forced to disk
        with _refusing(folder):
            self._descriptor = os.open(folder / LOOKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            sync_folder(folder)

    @classmethod
    def create(cls, folder: Path | str, header: RunHeader) -> RunLog:
        """Start a new run; refuse a folder that holds one."""
        folder = _made(folder)
        lock = FolderLock(folder, LOCK)
        try:
            content = _content(folder)
            found = parse_looks(content)
            if found.looks or found.damaged:  # a writer that died before its first look leaves nothing to protect
                looks = count(len(found.looks), "look")
                raise RefusalError(f"{folder} already holds a run ({looks}): give another folder, or resume that run.")
            _cut(folder, content, found, 0)
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
        lock = FolderLock(folder, LOCK)
        try:
            before = read_header(folder)
            if before.fingerprint != header.fingerprint:
                raise RefusalError(
                    f"{folder} is a run of another model ({before.model}, not {header.model}, or of another shape): "
                    "give each model its own folder."
                )
            content = _content(folder)
            found = parse_looks(content)
            kept = tuple(look for look in found.looks if look.step <= step)
            _cut(folder, content, found, found.ends[len(kept) - 1] if kept else 0)
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
        now = time.monotonic()
        due = now - self._synced >= SYNC_SECONDS
        try:
            append_whole(self._descriptor, look.line(), sync=due)
        except OSError as error:
            why = error.strerror or str(error)
            self._stopped = (
                f"{self.folder / LOOKS} could not be written ({why}): the record ends at step {max(self._step, 0)};"
                " make room there and resume the run to go on."
            )
            self.close()
            raise RunLogStopped(self._stopped) from error
        self._step = look.step
        self._synced = now if due else self._synced
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
        make_folders(path)
    except OSError as error:
        raise RefusalError(
            f"The run folder '{path}' cannot be made ({error.strerror}): choose another place."
        ) from None
    return path


@contextlib.contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise RefusalError(f"{folder / LOOKS} could not be written ({why}): make room there, and resume.") from error


def _content(folder: Path) -> bytes:
    try:
        return (folder / LOOKS).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RefusalError(f"{folder / LOOKS} cannot be read: {error.strerror or error}.") from error


def _cut(folder: Path, content: bytes, found: Parsed, end: int) -> None:
    """Cut looks.jsonl off at a byte, and move what is cut to the files beside it first. Add a line end that lacks."""
    lacks_end = end > 0 and not content[:end].endswith(b"\n")
    if end == len(content) and not lacks_end:
        return
    damaged = [(start, stop) for start, stop in found.damaged_spans if start >= end]
    spans = [end, *(byte for span in damaged for byte in span), len(content)]
    dropped = b"".join(content[start:stop] for start, stop in zip(spans[::2], spans[1::2], strict=True))
    with _refusing(folder):
        keep_beside(folder / DAMAGED, b"".join(content[start:stop] for start, stop in damaged))
        keep_beside(folder / DROPPED, dropped)
        descriptor = os.open(folder / LOOKS, os.O_WRONLY | os.O_APPEND)
        try:
            os.ftruncate(descriptor, end)
            append_whole(descriptor, b"\n" if lacks_end else b"", sync=True)
        finally:
            os.close(descriptor)
