"""Every source of text, and the refusal of every kind of bad source."""

import builtins
import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.data.corpus import Corpus
from attnscope.data.read import EMBEDDED, read

TEXT = "Down the rabbit-hole.\n\nWhat is the use of a book?\n"


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        read(source, **options)
    return str(caught.value)


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.log", "no_suffix"])
def test_a_text_file_is_one_document(tmp_path: Path, name: str) -> None:
    corpus = read(put(tmp_path / name, TEXT))
    assert corpus.documents == (TEXT,)
    assert corpus.files == (name,)
    assert corpus.characters == len(TEXT)


def test_json_lines_are_documents_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    odd = "line\u2028separator\x85inside"
    lines = [json.dumps({"text": "one", "id": 1}), "", json.dumps({"text": odd}, ensure_ascii=False), '"bare"']
    assert read(put(tmp_path / "a.jsonl", "\n".join(lines))).documents == ("one", odd, "bare")


def test_field_names_the_text_of_json_lines(tmp_path: Path) -> None:
    assert read(put(tmp_path / "a.jsonl", '{"body": "one"}\n'), field="body").documents == ("one",)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.raw.gz", "a.gz", "A.TXT.GZ"])
def test_gzipped_text(tmp_path: Path, name: str) -> None:
    assert read(put(tmp_path / name, gzip.compress(TEXT.encode()))).documents == (TEXT,)


def test_gzipped_json_lines(tmp_path: Path) -> None:
    assert read(put(tmp_path / "a.jsonl.gz", gzip.compress(b'{"text": "one"}'))).documents == ("one",)


def test_parquet(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["one", None, "two"], "n": [1, 2, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").documents == ("one", "two")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, TEXT.encode())
    corpus = read("-")
    assert (corpus.name, corpus.documents) == ("standard input", (TEXT,))


def test_a_folder_is_read_in_order_of_names(tmp_path: Path) -> None:
    put(tmp_path / "b.txt", "second")
    put(tmp_path / "a.jsonl", '{"text": "first"}')
    put(tmp_path / "c" / "d.txt.gz", gzip.compress(b"third"))
    put(tmp_path / "picture.png", b"\x89PNG\0\0")
    put(tmp_path / ".hidden" / "x.txt", "never")
    corpus = read(tmp_path)
    assert corpus.documents == ("first", "second", "third")
    assert corpus.files == ("a.jsonl", "b.txt", "c/d.txt.gz")
    assert corpus.skipped == ("picture.png",)
    assert corpus.folder
    assert not read(tmp_path / "b.txt").folder


def test_strings_and_iterators() -> None:
    assert read(["one", "two", "  \n"]).documents == ("one", "two")
    assert read(word for word in ("one", "two")).documents == ("one", "two")


def test_the_embedded_text_is_there_and_free_of_notices() -> None:
    corpus = read()
    (text,) = corpus.documents
    assert corpus.name == EMBEDDED
    assert 100_000 < len(text.encode()) <= 120_000
    assert text.isascii()
    assert "gutenberg" not in text.lower()
    assert text.startswith("Alice's Adventures in Wonderland\nby Lewis Carroll, 1865\n")


def test_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    assert read(put(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree")).documents == ("one\ntwo\nthree",)


def test_the_hash_is_of_the_text_and_not_of_its_file(tmp_path: Path) -> None:
    plain = read(put(tmp_path / "a.txt", TEXT))
    assert read(put(tmp_path / "b.txt.gz", gzip.compress(TEXT.encode()))).sha256 == plain.sha256
    assert read(put(tmp_path / "c.jsonl", json.dumps({"text": TEXT}))).sha256 == plain.sha256
    assert read([TEXT]).sha256 == plain.sha256


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1), min_size=2))
def test_hash_depends_on_order_content_and_boundaries(documents: list[str]) -> None:
    def hashed(parts: list[str]) -> str:
        return Corpus.of("x", parts).sha256

    assert hashed(documents) == hashed(list(documents))
    assert hashed(documents) != hashed(["".join(documents)])
    assert (hashed(documents) == hashed(documents[::-1])) == (documents == documents[::-1])


def test_missing_file(tmp_path: Path) -> None:
    sentence = refusal(str(tmp_path / "nothing.txt"))
    assert "There is no corpus file or folder" in sentence
    assert "nothing.txt" in sentence


@pytest.mark.parametrize("text", ["word " * 5000, "a\0b"])
def test_a_text_in_place_of_a_path(text: str) -> None:
    sentence = refusal(text)
    assert "give texts in a list" in sentence
    assert len(sentence) < 250


@pytest.mark.parametrize("data", ["", "   \n\n", "\ufeff"])
def test_empty_file(tmp_path: Path, data: str) -> None:
    assert "is empty" in refusal(put(tmp_path / "a.txt", data))


def test_empty_json_lines_list_input_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is empty" in refusal(put(tmp_path / "a.jsonl", "\n\n"))
    assert "is empty" in refusal([])
    stdin(monkeypatch, b"")
    assert "standard input is empty" in refusal("-")
    (tmp_path / "folder").mkdir()
    assert "holds no text file" in refusal(tmp_path / "folder")


def test_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "zero byte at offset 3" in refusal(put(tmp_path / "a.txt", b"abc\0def"))
    assert "UTF-16" in refusal(put(tmp_path / "b.txt", "abc".encode("utf-16-le")))
    stdin(monkeypatch, b"\0\1")
    assert "Standard input looks binary" in refusal("-")


def test_not_utf8_says_the_byte(tmp_path: Path) -> None:
    assert "byte 0xe9 at offset 3" in refusal(put(tmp_path / "a.txt", "café au lait".encode("latin-1")))
    assert "byte 0xe9 at offset 3" in refusal(put(tmp_path / "a.gz", gzip.compress("café au lait".encode("latin-1"))))


def test_a_bad_file_of_a_known_kind_in_a_folder_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "fine")
    put(tmp_path / "b.txt", b"\xff")
    sentence = refusal(tmp_path)
    assert "b.txt" in sentence
    assert "0xff at offset 0" in sentence


def test_broken_json_line(tmp_path: Path) -> None:
    sentence = refusal(put(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"text": "tw'))
    assert "line 3" in sentence
    assert "is not JSON" in sentence


def test_deeply_nested_json_line(tmp_path: Path) -> None:
    assert "line 1" in refusal(put(tmp_path / "a.jsonl", "[" * 200_000))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"body": "one", "id": 3}', "has no field 'text'; choose one of its fields with `field=`: body, id"),
        ("{}", "it has no field at all"),
        ('{"text": 3}', "has no text in the field 'text'"),
        ("[1, 2]", "is not a JSON object"),
    ],
)
def test_json_line_without_the_text(tmp_path: Path, line: str, expected: str) -> None:
    sentence = refusal(put(tmp_path / "a.jsonl", f'{{"text": "one"}}\n{line}\n'))
    assert "line 2" in sentence
    assert expected in sentence


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(TEXT.encode() * 50)
    wrong = bytearray(whole)
    wrong[30] ^= 0xFF
    for data in (b"plain text", whole[:-12], bytes(wrong)):
        assert "is not a whole gzip file" in refusal(put(tmp_path / "a.txt.gz", data))


def test_parquet_refusals(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["one"], "n": [1]}), path)
    assert "has no column 'text'; choose one of its fields with `field=`: body, n" in refusal(path)
    assert "holds int64, not text" in refusal(path, field="n")
    path.write_bytes(path.read_bytes()[:-9])
    assert "is not a whole parquet file" in refusal(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_pyarrow(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real_import(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    assert "pip install 'attnscope[parquet]'" in refusal(put(tmp_path / "a.parquet", b"x"))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    path = put(tmp_path / "a.txt", TEXT)
    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read (Permission denied)" in refusal(path)


def test_list_items_that_are_not_text_are_refused() -> None:
    assert "Item 1 of the corpus is int, not text" in refusal(item for item in ("one", 2))
