"""Reading with a bound: a device has no end, and a megabyte of gzip can unpack to gigabytes."""

from __future__ import annotations

import gzip
import io
from typing import Protocol, runtime_checkable

from attnscope.core.errors import RefusalError

LARGEST = 1 << 30  # bytes of a corpus or a survey: both are held in memory, several times over
_PIECE = 1 << 20


@runtime_checkable
class Readable(Protocol):
    """A file, a pipe, or what unpacks one."""

    def read(self, size: int, /) -> bytes: ...


def read_all(stream: Readable, name: str, most: int | None = None) -> bytes:
    """Everything up to the end of `stream`, or a refusal where that is too far."""
    most = LARGEST if most is None else most
    pieces, length = [], 0
    while piece := stream.read(min(_PIECE, most + 1 - length)):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise RefusalError(too_large(name, most))
    return b"".join(pieces)


def unpacked(data: bytes, name: str) -> bytes:
    """What gzip packed. Raises what `gzip` does where the data are damaged."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return read_all(stream, name)


def too_large(name: str, most: int) -> str:
    size = f"{most / 2**30:g} GB" if most >= 1 << 30 else f"{most / 2**20:g} MB"
    return f"{name} holds more than {size}, which is more than is read: give a part of it."
