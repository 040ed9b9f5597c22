"""Open what a user names for reading: a file, or a pipe that somebody writes to. Devices are refused.

    with opened(path) as stream:
        content = read_all(stream, str(path))

`attnscope view pocket <(cat text.txt)` hands over a pipe (`/dev/fd/63`). A pipe without a writer would block for ever,
and a device such as /dev/zero has no end, so both end in a refusal.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from attnscope.core.errors import RefusalError

PATIENCE = 10.0  # seconds that a pipe may be without a writer
_PAUSE = 0.02


@runtime_checkable
class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Pipe:
    """A pipe of which the first bytes were read already."""

    def __init__(self, begun: bytes, rest: BinaryIO) -> None:
        self.begun, self.rest = begun, rest

    def read(self, size: int, /) -> bytes:
        if self.begun:
            piece, self.begun = self.begun[:size], self.begun[size:]
            return piece
        return self.rest.read(size)


@contextmanager
def opened(path: Path) -> Iterator[Readable]:
    """Open a file or a pipe; refuse devices, sockets, and a pipe that nobody writes to for `PATIENCE` seconds."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise RefusalError(f"'{path}' is {kind}, not a file: give a file, or - for standard input.")
    if not stat.S_ISFIFO(mode):
        with path.open("rb") as stream:
            yield stream
        return
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as rest:
        begun = _begun(number, path)
        os.set_blocking(number, True)
        yield _Pipe(begun, rest)


def _begun(number: int, path: Path) -> bytes:
    """Wait for a writer and return the bytes that came meanwhile.

    Reading an empty pipe that is not allowed to block tells both cases apart: it returns nothing as long as there is no
    writer, and raises BlockingIOError as soon as one has opened the pipe. A writer that came and left without a byte
    looks like none.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if begun := os.read(number, 1 << 16):
                return begun
        except BlockingIOError:
            return b""
        if time.monotonic() > deadline:
            raise RefusalError(
                f"Nobody wrote to the pipe '{path}' for {PATIENCE:g} seconds: start the program that writes to it, or "
                "give a file."
            )
        time.sleep(_PAUSE)
