"""Read documents from the bytes of one file: plain text or JSON lines, gzipped or not, or parquet.

A text file is one document. A line of JSON is one document, and so is a row of parquet; `field` names the field or
column that holds the text. Lines that have a source and a target instead of that field are pairs, for encoder-decoders.
A damaged or wrong file is refused with one sentence that says where the problem is and what to do.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.files import LARGEST, read_all, too_large, unpacked
from attnscope.core.opening import opened
from attnscope.data.corpus import Document

JSON_LINES = (".jsonl", ".ndjson")
_PAIR = ("source", "target")
_ROWS = 1024  # rows of parquet read at a time
KNOWN = (".txt", ".md", ".gz", ".parquet", *JSON_LINES)


def documents(data: bytes, name: str, suffixes: list[str], field: str) -> list[Document]:
    """Return the documents in `data`; `suffixes` are the `Path.suffixes` of the file name."""
    kinds = [suffix.lower() for suffix in suffixes]
    if kinds[-1:] == [".gz"]:
        with whole_file(name, "gzip", EOFError, zlib.error, gzip.BadGzipFile):
            return documents(unpacked(data, name), name, kinds[:-1], field)
    if kinds[-1:] == [".parquet"]:
        return _parquet(data, name, field)
    text = plain_text(data, name)
    return _json_lines(text, name, field) if kinds[-1:] and kinds[-1] in JSON_LINES else [text]


def plain_text(data: bytes, name: str, before: int = 0) -> str:
    """Decode UTF-8 with or without a byte order mark; line ends become newlines, as in Python's text files. `before` is
    the offset of `data` in the file."""
    if (zero := data.find(b"\0")) >= 0:
        raise RefusalError(
            f"{name} looks binary (a zero byte at offset {before + zero}): give a text file; save UTF-16 as UTF-8."
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusalError(
            f"{name} is not UTF-8 (byte 0x{data[error.start]:02x} at offset {before + error.start}): "
            "convert it, for example with iconv -f latin1 -t utf-8."
        ) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _json_lines(text: str, name: str, field: str) -> list[Document]:
    # Only a newline ends a record: JSON strings may hold the other separators that splitlines() knows.
    return [
        json_record(line, f"{name}, line {number},", field)
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]


def json_line(line: str, place: str, example: str = "JSON object") -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RefusalError(f"{place} is not JSON ({error}): every line must be one {example}.") from error


def json_record(line: str, place: str, field: str) -> Document:
    record = json_line(line, place)
    if isinstance(record, str):
        texts: tuple[Any, ...] = (record,)
    elif not isinstance(record, dict):
        raise RefusalError(f'{place} is not a JSON object: write lines like {{"{field}": "..."}}.')
    elif field in record:
        texts = (record[field],)
    elif all(isinstance(record.get(side), str) for side in _PAIR):
        texts = tuple(record[side] for side in _PAIR)
    else:
        raise RefusalError(f"{place} has no field '{field}'; {_pick(record)}.")
    if not isinstance(texts[0], str):
        raise RefusalError(f"{place} has no text in the field '{field}': choose a field of strings with `field=`.")
    for text in texts:
        refuse_half_characters(text, place)
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def refuse_half_characters(text: str, place: str) -> None:
    """Refuse half of a surrogate pair: no tokenizer accepts it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RefusalError(
            f"{place} holds half a character (\\u{ord(text[error.start]):04x}) at position {error.start}: "
            "write it again as UTF-8."
        ) from error


def _pick(fields: Any) -> str:
    names = f"{', '.join(map(str, fields)):.300}"
    return f"choose one of its fields with `field=`: {names}" if names else "it has no field at all"


def _parquet(data: bytes, name: str, field: str) -> list[Document]:
    with whole_parquet(name):
        return _rows(opened_parquet(io.BytesIO(data), name, field), name, field)


def opened_parquet(source: Any, name: str, field: str) -> Any:
    """Open a parquet file whose `field` is a column of text."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RefusalError(
            f"Reading {name} needs pyarrow: pip install 'attnscope[parquet]', or convert it to .jsonl."
        ) from error
    with whole_parquet(name):
        file = pyarrow.parquet.ParquetFile(source)
        columns = file.schema_arrow
        if field not in columns.names:
            raise RefusalError(f"{name} has no column '{field}'; {_pick(columns.names)}.")
        if len(columns.get_all_field_indices(field)) > 1:
            raise RefusalError(f"{name} has several columns called '{field}': rename all but one of them.")
        kind = columns.field(field).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise RefusalError(f"The column '{field}' of {name} holds {kind}, not text: choose another with `field=`.")
        return file


@contextmanager
def whole_file(name: str, kind: str, *damages: type[Exception]) -> Iterator[None]:
    """Turn errors of the types `damages` into a refusal that calls the file damaged."""
    try:
        yield
    except damages as error:
        raise RefusalError(
            f"{name} is not a whole {kind} file ({error}): it may be cut short or damaged; fetch it again."
        ) from error


def whole_parquet(name: str) -> AbstractContextManager[None]:
    damages: list[type[Exception]] = [OSError, KeyError, ValueError]
    with suppress(ImportError):  # `opened_parquet` refuses with advice
        import pyarrow

        damages.append(pyarrow.ArrowException)
    return whole_file(name, "parquet", *damages)


def _rows(file: Any, name: str, field: str) -> list[Document]:
    """Read a few rows at a time: a long repeated text is small in the file and large in memory."""
    rows: list[Document] = []
    length = number = 0
    for batch in file.iter_batches(batch_size=_ROWS, columns=[field]):
        for value in batch.column(0):
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                raise RefusalError(
                    f"Row {number} of the column '{field}' of {name} is not UTF-8 (byte "
                    f"0x{error.object[error.start]:02x} at offset {error.start}): write the file again as UTF-8."
                ) from error
            number += 1
            if text is not None:
                rows.append(text)
                length += len(text)
        if length > LARGEST:
            raise RefusalError(too_large(name, LARGEST))
    return rows


LONGEST_TEXT = 1 << 26  # bytes; far more than any model has positions for
TEXT_SUFFIXES = (".txt", ".md", ".text", ".json", ".jsonl")
_LONGEST_NAME = 1024


def text_of_file(path: Path) -> str:
    """Return the content of a file as one text, whatever its name; refuse anything but UTF-8."""
    if path.is_dir():
        raise RefusalError(f"'{path}' is a folder: give a text, or a text file.")
    try:
        with opened(path) as stream:
            return plain_text(read_all(stream, f"'{path}'", LONGEST_TEXT), f"'{path}'")
    except FileNotFoundError:
        raise RefusalError(f"There is no file '{path}': give a text, or the name of an existing file.") from None
    except OSError as error:
        raise RefusalError(f"'{path}' cannot be read ({error.strerror}): give the text itself.") from None


def refuse_name_of_file(text: str) -> None:
    """Refuse a string that is the name of an existing text file. In Python a string is a text and a Path a file:
    the caller meant the file, and its name would be explained instead."""
    if len(text) >= _LONGEST_NAME or any(c.isspace() or c == "\0" for c in text):
        return
    with suppress(OSError):
        if Path(text).suffix.lower() in TEXT_SUFFIXES and Path(text).is_file():
            raise RefusalError(f"'{text}' is the name of a file here: give Path('{text}') to read it.")
