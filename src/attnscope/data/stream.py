"""A corpus larger than memory: read once to be counted and hashed, then again a block at a time, wherever it is needed.

A block is about 64,000 characters of consecutive documents of one file; a short file is a short block, and a long
document a long one. The index that the first reading leaves says where each begins (a file and a place in it) and how
many characters there are up to its end (24 bytes a block), so that any block can be had without those before it; inside
gzip they are unpacked on the way, and forgotten. Plain text is cut where a line or a word ends.
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
from attnscope.data.formats import JSON_LINES, KNOWN, json_record, opened_parquet, plain_text, whole_parquet

LARGE = 64 << 20  # bytes, as stored: what is smaller is read whole
_PIECE = 1 << 16
_ROWS = 64  # of parquet, at a time


@dataclass(frozen=True, eq=False)
class Stream:
    """Blocks of text by number. Reading the same files again must give the same text: `sha256` says which it was."""

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
        """In so many blocks, the first ones."""
        return int(self._upto[blocks - 1]) if blocks else 0

    def block(self, number: int) -> list[str]:
        """The texts of one block."""
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
    """What a corpus takes where it is kept: a file, all files of a folder, or an object elsewhere."""
    if is_address(source):
        system, path = filesystem(str(source))
        return int(system.du(path) or 0)
    here = Path(source).expanduser()
    return sum(one.stat().st_size for one in ([here] if here.is_file() else here.rglob("*")) if one.is_file())


def stream(source: str | Path, name_of_field: str = "text", block: int = _PIECE) -> Stream:
    """Read everything once, and keep where its blocks of `block` characters begin."""
    files, folder = _files(source)
    digest = hashlib.sha256()
    starts = (array("q"), array("q"), array("q"))
    characters = 0
    for number, file in enumerate(files):
        full, place = block, 0  # so that the first piece begins a block
        for text, after in _pieces(file, name_of_field, 0):
            if full >= block:
                starts[0].append(number)
                starts[1].append(place)
                starts[2].append(0)
                full = 0
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
            full, place, characters = full + len(text), after, characters + len(text)
            starts[2][-1] = characters
    if not starts[0]:
        raise RefusalError(f"The corpus {source} is empty: give it at least a few sentences of text.")
    index = [np.array(one, dtype=np.int64) for one in starts]
    return Stream(str(source), digest.hexdigest(), files, name_of_field, folder, *index)


def _files(source: str | Path) -> tuple[tuple[str, ...], bool]:
    if is_address(source):
        system, path = filesystem(str(source))
        if system.isfile(path):
            return (str(source),), False
        found = [system.unstrip_protocol(one) for one in sorted(system.find(path))]
    else:
        here = Path(source).expanduser()
        if here.is_file():
            return (str(here),), False
        inside = (one for one in here.rglob("*") if one.is_file())
        found = [str(one) for one in sorted(inside) if not any(p.startswith(".") for p in one.relative_to(here).parts)]
    known = tuple(one for one in found if PurePosixPath(one).suffix.lower() in KNOWN)
    if not known:
        raise RefusalError(f"The folder {source} holds no text file: put .txt, .jsonl or .parquet files in it.")
    return known, True


def _kind(file: str) -> tuple[str, bool]:
    """What a file holds, by its name, and whether it is packed."""
    kinds = [suffix.lower() for suffix in PurePosixPath(file).suffixes]
    packed = kinds[-1:] == [".gz"]
    return ((kinds[:-1] if packed else kinds)[-1:] or [""])[0], packed


def _is_plain_text(file: str) -> bool:
    """Whether pieces are parts of one text, and not texts of their own."""
    return _kind(file)[0] not in (".parquet", *JSON_LINES)


def _pieces(file: str, name_of_field: str, start: int, end: int | None = None) -> Iterator[tuple[str, int]]:
    """Texts from a place on, each with the place after it; blank ones are left out. Plain text stops at `end`: where
    its pieces end depends on where they begin, so those of a block are not those of the first reading."""
    kind, packed = _kind(file)
    with _open(file) as raw:
        if kind == ".parquet":
            found = _rows(raw, file, name_of_field, start)
        else:
            lines: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            try:
                lines.seek(start)
                read = _json_lines(lines, file, name_of_field) if kind in JSON_LINES else _text(lines, file, end)
                yield from ((text, after) for text, after in read if text.strip())
                return
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise RefusalError(
                    f"{file} is not a whole gzip file ({error}): it may be cut short or damaged; fetch it again."
                ) from error
        yield from ((text, after) for text, after in found if text.strip())


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
            found = json_record(
                plain_text(line, file, after - len(line)), f"{file}, before byte {after},", name_of_field
            )
            if not isinstance(found, str):
                raise RefusalError(f"{file} holds pairs and is too large to be read whole: give fewer of them.")
            yield found, after


def _text(lines: Any, file: str, last: int | None) -> Iterator[tuple[str, int]]:
    """Pieces of a text up to a place, each to the end of a line or a word; no character is cut in two."""
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
    """Where the last whole character of UTF-8 ends."""
    end = len(data) - 1
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    return end or len(data)


def _rows(raw: Any, file: str, name_of_field: str, start: int) -> Iterator[tuple[str, int]]:
    """Row groups before the place are not read at all."""
    found = opened_parquet(raw, file, name_of_field)
    before = 0
    for group in range(found.num_row_groups):
        rows = found.metadata.row_group(group).num_rows
        if before + rows > start:
            number = before
            with whole_parquet(file):
                for batch in found.iter_batches(batch_size=_ROWS, columns=[name_of_field], row_groups=[group]):
                    for text in batch.column(0).to_pylist():
                        number += 1
                        if number > start and text is not None:
                            yield text, number
        before += rows
