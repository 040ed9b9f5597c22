"""Checksums inside files: a SHA-256 in every JSON document, and a CRC-32 in every line of a log.

    hashed(document)                 the document with `"sha256"` as its last key
    refuse_damaged(document, ...)    refuses a document that does not fit its hash

    checked_line(b'{"step":1}')      b'{"step":1,"crc32":"55ef4fcc"}\\n'
    unchecked(line)                  the text without its checksum; ValueError if it does not fit

The hash of a document is that of its values, not of its spaces: a file may be indented or compressed again. Documents
and lines that were written before there were checksums are read without one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.files import sync_folder

HASH = "sha256"
LOG = logging.getLogger("attnscope")
_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}')
_TAIL = len(b',"crc32":"01234567"}')


def content_hash(document: Mapping[str, Any]) -> str:
    """Hash the values of a document, in the order of its keys, without its own hash."""
    values = {name: value for name, value in document.items() if name != HASH}
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def hashed(document: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, HASH: content_hash(document)}


def refuse_damaged(document: Mapping[str, Any], path: Path | str, remedy: str) -> dict[str, Any]:
    """Check a document against its hash and return it without the hash. Refuse a document that does not match.

    A document without a hash is accepted, with a note in the log.
    """
    if HASH not in document:
        LOG.info("%s carries no hash, so damage in it would go unnoticed: save it again to add one.", path)
    elif document[HASH] != content_hash(document):
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
