"""Checksums inside files: a SHA-256 in every JSON document, and a CRC-32 in every line of a log.

    hashed(document)                 the document with `"sha256"` as its last key
    refuse_damaged(document, ...)    refuses a document that does not fit its hash

    checked_line(b'{"step":1}')      b'{"step":1,"crc32":"55ef4fcc"}\\n'
    unchecked(line)                  the text without its checksum; ValueError if it does not fit
    log_lines(content)               where the lines of a log begin and end, also if a line end is damaged

The hash of a document is that of its values, not of its spaces or of the form of its numbers: a file may be indented,
compressed or written again by a tool that turns 0.0 into 0. Documents and lines that were written before there were
checksums are read without one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.core.errors import RefusalError
from attnscope.core.files import sync_folder

HASH = "sha256"
LOG = logging.getLogger("attnscope")
_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}')
_TAIL = len(b',"crc32":"01234567"}')
# The end of a line with a checksum, one damaged byte at most, and the next line or the end. No text in a line can look
# like it, because JSON writes quotes inside of text as \".
_JOINT = re.compile(rb'(,"crc32":"[0-9a-f]{8}"\}).?(?=\{"|\Z)', re.DOTALL)


def content_hash(document: Mapping[str, Any]) -> str:
    """Hash the values of a document, in the order of its keys, without its own hash. 0 and 0.0 are the same value."""
    return _hash(_whole_as_integers({name: value for name, value in document.items() if name != HASH}))


def _hash(values: Any) -> str:
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def _whole_as_integers(value: Any) -> Any:
    """Return JSON values with every float that is whole as an integer."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: _whole_as_integers(entry) for name, entry in value.items()}
    return [_whole_as_integers(entry) for entry in value] if isinstance(value, list | tuple) else value


def _fits(document: Mapping[str, Any]) -> bool:
    """Return whether a document fits its hash. Earlier hashes were of the numbers as they were written."""
    values = {name: value for name, value in document.items() if name != HASH}
    return document[HASH] in (content_hash(document), _hash(values))


def hashed(document: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, HASH: content_hash(document)}


def refuse_damaged(document: Mapping[str, Any], path: Path | str, remedy: str) -> dict[str, Any]:
    """Check a document against its hash and return it without the hash. Refuse a document that does not match.

    A document without a hash is accepted, with a note in the log.
    """
    if HASH not in document:
        LOG.info("%s carries no hash, so damage in it would go unnoticed: save it again to add one.", path)
    elif not _fits(document):
        raise RefusalError(
            f"{path} is damaged (it does not fit its {HASH}): {remedy}; if you changed it yourself, delete its "
            f'"{HASH}" entry.'
        )
    return {name: value for name, value in document.items() if name != HASH}


def checked_line(text: bytes) -> bytes:
    """Return the line of a log for a JSON object: its text with a checksum, and a line end."""
    return b'%b,"crc32":"%08x"}\n' % (text[:-1], zlib.crc32(text))


def unchecked(line: bytes) -> bytes:
    """Return the text of a line without line end and checksum. Raise ValueError if it does not fit its checksum."""
    checksum = _CHECKSUM.fullmatch(line[-_TAIL:])
    if checksum is None:  # a damaged checksum stays in the text, as a field that no reader knows
        return line
    text = line[:-_TAIL] + b"}"
    if zlib.crc32(text) != int(checksum[1], 16):
        raise ValueError("it does not fit its checksum")
    return text


class LogLine(NamedTuple):
    """A line of a log: its text is content[start:stop], and it ends, with its line end, before byte `end`."""

    number: int  # of the line in the file, from 1; joined lines share it
    start: int
    stop: int
    end: int
    whole: bool  # it has a line end, or ends with a checksum


def log_lines(content: bytes) -> Iterator[LogLine]:
    """Yield the lines of a log. Lines that a damaged line end joins are separated after the checksum of each."""
    first = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        ended, begin, spans = first + len(line) < len(content), 0, []
        for joint in _JOINT.finditer(line):
            spans.append((begin, joint.end(1), True))
            begin = joint.end()
        if begin < len(line) or (ended and not line):
            spans.append((begin, len(line), ended))
        for start, stop, whole in spans:
            last = ended and stop == spans[-1][1]
            yield LogLine(number, first + start, first + stop, first + (len(line) + 1 if last else stop), whole)
        first += len(line) + 1


def append_whole(descriptor: int, content: bytes, *, sync: bool) -> None:
    """Append all of the content to an open file, or raise OSError and leave the file as it was."""
    before = os.fstat(descriptor).st_size
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, before)
        raise


def keep_beside(path: Path, content: bytes) -> None:
    """Append what is about to be cut off a log to another file, on disk when this returns.

    A second attempt after a failure adds nothing: the content is at the end of the file already.
    """
    if not content:
        return
    content += b"" if content.endswith(b"\n") else b"\n"
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes().endswith(content):
            return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        append_whole(descriptor, content, sync=True)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)
