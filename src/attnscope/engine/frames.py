"""Messages between a driver and its workers: pickles with their length in front, through pipes."""

from __future__ import annotations

import pickle
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct(">Q")


def send(stream: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """The next message; `EOFError` where there is none any more."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = stream.read(length := _LENGTH.unpack(head)[0])
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)  # both ends are this program
