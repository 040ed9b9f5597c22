"""A corpus larger than memory: read once to count and hash it, then again one block of text at a time.

A block is about 64,000 characters of consecutive documents of one file; a short file is a shorter block, and a long
document a longer one. The first reading stores 24 bytes per block: where it begins (a file and a position in it) and
how many characters there are up to its end. So any block can be read without those before it, except inside gzip, where
earlier blocks are unpacked and dropped. Plain text is cut at the end of a line or word.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.core.errors import RefusalError
from attnscope.core.folders import filesystem, is_address
from attnscope.data.formats import JSON_LINES, KNOWN, json_record, opened_parquet, plain_text, whole_file, whole_parquet

LARGE = 64 << 20  # bytes on disk; a smaller corpus is read whole
_PIECE = 1 << 16
_ROWS = 64  # rows of parquet read at a time


@dataclass(frozen=True, eq=False)
class Stream:
    """Numbered blocks of text. The files must not change between readings; `sha256` is the hash of the text."""

    name: str
    sha256: str
    files: tuple[str, ...]
    field: str
    folder: bool
    _file: NDArray[np.int64]
    _place: NDArray[np.int64]
    _upto: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self._file)

    def characters(self, blocks: int) -> int:
        """Return the number of characters in the first `blocks` blocks."""
        return int(self._upto[blocks - 1]) if blocks else 0

    def block(self, number: int) -> list[str]:
        """Return the texts of one block."""
        file, start = int(self._file[number]), int(self._place[number])
        last = number + 1 == len(self) or self._file[number + 1] != file
        end = None if last else int(self._place[number + 1])
        texts = []
        for text, after in _pieces(self.files[file], self.field, start, end):
            texts.append(text)
            if end is not None and after >= end:
                break
        return ["".join(texts)] if texts and _is_plain_text(self.files[file]) else texts


def stored_bytes(source: str | Path) -> int:
    """Return the size in bytes of a corpus: a file, all files of a folder, or a remote object."""
    if is_address(source):
        system, path = filesystem(str(source))
        return int(system.du(path) or 0)
    here = Path(source).expanduser()
    return sum(file.stat().st_size for file in ([here] if here.is_file() else here.rglob("*")) if file.is_file())


def stream(source: str | Path, name_of_field: str = "text", block: int = _PIECE) -> Stream:
    """Read a corpus once, and store where its blocks of `block` characters begin."""
    files, folder = _files(source)
    digest = hashlib.sha256()
    numbers, positions, upto = array("q"), array("q"), array("q")
    characters = 0
    for number, file in enumerate(files):
        filled, position = block, 0  # so that the first piece begins a block
        for text, after in _pieces(file, name_of_field, 0):
            if filled >= block:
                numbers.append(number)
                positions.append(position)
                upto.append(0)
                filled = 0
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
            filled, position, characters = filled + len(text), after, characters + len(text)
            upto[-1] = characters
    if not numbers:
        raise RefusalError(f"The corpus {source} is empty: give it at least a few sentences of text.")
    index = [np.array(column, dtype=np.int64) for column in (numbers, positions, upto)]
    return Stream(str(source), digest.hexdigest(), files, name_of_field, folder, *index)


def _files(source: str | Path) -> tuple[tuple[str, ...], bool]:
    if is_address(source):
        system, path = filesystem(str(source))
        if system.isfile(path):
            return (str(source),), False
        names = [system.unstrip_protocol(name) for name in sorted(system.find(path))]
    else:
        here = Path(source).expanduser()
        if here.is_file():
            return (str(here),), False
        inside = sorted(path for path in here.rglob("*") if path.is_file())
        names = [str(path) for path in inside if not any(p.startswith(".") for p in path.relative_to(here).parts)]
    known = tuple(name for name in names if PurePosixPath(name).suffix.lower() in KNOWN)
    if not known:
        raise RefusalError(f"The folder {source} holds no text file: put .txt, .jsonl or .parquet files in it.")
    return known, True


def _kind(file: str) -> tuple[str, bool]:
    """Return the format of a file, by its name, and whether it is compressed."""
    kinds = [suffix.lower() for suffix in PurePosixPath(file).suffixes]
    packed = kinds[-1:] == [".gz"]
    return ((kinds[:-1] if packed else kinds)[-1:] or [""])[0], packed


def _is_plain_text(file: str) -> bool:
    """Return whether the file is one text, rather than a list of texts."""
    return _kind(file)[0] not in (".parquet", *JSON_LINES)


def _pieces(file: str, name_of_field: str, start: int, end: int | None = None) -> Iterator[tuple[str, int]]:
    """Yield texts from a position on, each with the position after it; skip blank texts. Plain text stops at `end`:
    where its pieces end depends on where they begin, so pieces of a block may differ from those of the first
    reading."""
    kind, packed = _kind(file)
    with _open(file) as raw, whole_file(file, "gzip", EOFError, zlib.error, gzip.BadGzipFile):
        if kind == ".parquet":
            read = _rows(raw, file, name_of_field, start)
        else:
            lines: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            lines.seek(start)
            read = _json_lines(lines, file, name_of_field) if kind in JSON_LINES else _text(lines, file, end)
        yield from ((text, after) for text, after in read if text.strip())


def _open(file: str) -> Any:
    try:
        if is_address(file):
            system, path = filesystem(file)
            return system.open(path, "rb")
        return Path(file).open("rb")
    except OSError as error:
        raise RefusalError(f"{file} cannot be read ({error.strerror or error}): check it.") from error


def _json_lines(lines: Any, file: str, name_of_field: str) -> Iterator[tuple[str, int]]:
    after = lines.tell()
    for line in iter(lines.readline, b""):
        after += len(line)
        if line.strip():
            text = plain_text(line, file, after - len(line))
            found = json_record(text, f"{file}, before byte {after},", name_of_field)
            if not isinstance(found, str):
                raise RefusalError(f"{file} holds pairs and is too large to be read whole: give fewer of them.")
            yield found, after


def _text(lines: Any, file: str, last: int | None) -> Iterator[tuple[str, int]]:
    """Yield pieces of a text up to a position, each cut at the end of a line or word and never inside a character."""
    after, rest = lines.tell(), b""
    while data := lines.read(_PIECE if last is None else min(_PIECE, last - after - len(rest))):
        rest += data
        end = rest.rfind(b"\n") + 1 or rest.rfind(b" ") + 1
        if end or len(rest) > 16 * _PIECE:
            end = end or _whole_characters(rest)
            yield plain_text(rest[:end], file, after), after + end
            after += end
            rest = rest[end:]
    if rest:
        yield plain_text(rest, file, after), after + len(rest)


def _whole_characters(data: bytes) -> int:
    """Return the position after the last complete UTF-8 character."""
    end = len(data) - 1
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    return end or len(data)


def _rows(raw: Any, file: str, name_of_field: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield the text of each row after `start` with the row's number, counted from 1. Do not read earlier row
    groups."""
    parquet = opened_parquet(raw, file, name_of_field)
    before = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if before + rows > start:
            number = before
            with whole_parquet(file):
                for batch in parquet.iter_batches(batch_size=_ROWS, columns=[name_of_field], row_groups=[group]):
                    for text in batch.column(0).to_pylist():
                        number += 1
                        if number > start and text is not None:
                            yield text, number
        before += rows
