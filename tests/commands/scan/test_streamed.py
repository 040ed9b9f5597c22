"""A corpus larger than memory is read as numbered blocks of text, and its shards are made on demand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.commands.scan.run import scan
from attnscope.core.errors import RefusalError
from attnscope.data import stream as stream_module
from attnscope.data.read import read as read_whole
from attnscope.data.stream import stream
from attnscope.hf.loading.feed import Streamed
from attnscope.hf.loading.load import load
from attnscope.hf.loading.options import Sampling
from tests.specimens import TEXT, save_specimen

TEXTS = [f"{n}: {TEXT[n % 40 :]} \u00e9" for n in range(60)]


def _write(folder: Path, kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"c.{kind}"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), path, row_group_size=7)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif kind == "folder":
        path.mkdir()
        for number, text in enumerate(TEXTS):
            (path / f"{number:02}.txt").write_text(text)
    else:
        path.write_text(lines if kind == "jsonl" else "\n".join(TEXTS))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "folder", "txt"])
def test_blocks_are_the_whole_text_each_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_PIECE", 300)
    read = stream(_write(tmp_path, kind), block=500)
    assert len(read) > 5
    blocks = [read.block(number) for number in range(len(read))]
    texts = [text for block in blocks for text in block]
    if kind in ("folder", "txt"):  # a text is cut into blocks
        assert "".join(texts) == ("\n" if kind == "txt" else "").join(TEXTS)
    else:
        assert texts == TEXTS
    assert [read.block(number) for number in reversed(range(len(read)))] == blocks[::-1]
    assert stream(_write(tmp_path / "again", kind), block=900).sha256 == read.sha256


def test_a_streamed_scan_is_the_same_alone_and_by_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "LARGE", 100)
    model = save_specimen(tmp_path / "model")
    corpus = _write(tmp_path, "jsonl")
    monkeypatch.setattr("attnscope.hf.loading.load._BLOCK", 700)
    monkeypatch.setattr("attnscope.hf.loading.load._BLOCK_PER_TOKEN", 1)
    monkeypatch.setattr("attnscope.hf.loading.feed.SHARD_TOKENS", 128)
    options: dict[str, Any] = {"samples": 24, "max_tokens": 16, "batch_size": 4, "measures": "entropy,spike"}
    whole = scan(model, corpus, **options)
    assert whole.provenance["corpus"]["sequences"] == 24
    for part in ("1/2", "2/2"):
        scan(model, corpus, **options, store=tmp_path / "store", shard=part)
    assert len(list((tmp_path / "store").glob("*.shard"))) == 3
    merged = scan(model, corpus, **options, store=tmp_path / "store")
    assert merged.cells == whole.cells
    assert merged.excerpts == whole.excerpts
    monkeypatch.setattr("attnscope.hf.loading.feed.MOST_SHARDS", 2)  # two shards, with two pieces and one piece
    assert scan(model, corpus, **options, store=tmp_path / "few").cells == whole.cells
    assert len(list((tmp_path / "few").glob("*.shard"))) == 2


def test_every_stretch_of_text_has_the_same_chance(tmp_path: Path) -> None:
    """Fifty notes of one line beside a book are a hundredth of the text, so they are a hundredth of what is read."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "book.jsonl").write_text("".join(f'"{n:06} is a line of the book"\n' for n in range(4000)))
    for number in range(50):
        (folder / f"note-{number:02}.txt").write_text("a note of one line\n")
    text = stream(folder, block=2000)
    assert len(text) > 100
    loaded = load(save_specimen(tmp_path / "model"))
    whole = text.characters(len(text))
    shares = np.diff([text.characters(number) for number in range(len(text) + 1)]) / whole
    drawn = np.array(
        [
            [Streamed(loaded, text, Sampling(10, 16, 4, seed))._quota(block) for block in range(len(text))]
            for seed in range(300)
        ]
    )
    assert set(drawn.sum(axis=1)) == {10}
    assert np.abs(drawn - 10 * shares).max() < 1  # equal to its share up to rounding
    errors = np.sqrt(10 * shares * (1 - 10 * shares) / len(drawn))
    assert (np.abs(drawn.mean(axis=0) - 10 * shares) < 5 * errors).all()  # and equal to it on average


def test_a_corpus_is_read_from_an_address(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    data = _write(tmp_path, "jsonl").read_bytes()
    fsspec.filesystem("memory").pipe_file("/attnscope-corpus/c.jsonl", data)
    read = stream("memory://attnscope-corpus/c.jsonl", block=500)
    assert [text for number in range(len(read)) for text in read.block(number)] == TEXTS
    assert list(read_whole("memory://attnscope-corpus/c.jsonl").documents) == TEXTS
    with pytest.raises(RefusalError, match="There is nothing at"):
        read_whole("memory://attnscope-nothing")


def test_a_damaged_stream_is_refused(tmp_path: Path) -> None:
    whole = _write(tmp_path, "jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(RefusalError, match="not a whole gzip file"):
        stream(tmp_path / "cut.jsonl.gz")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(RefusalError, match="is empty"):
        stream(tmp_path / "empty.jsonl")


def test_damage_further_on_in_a_stream_is_refused_with_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path, "parquet")
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)  # the first row group; the footer, by which a file is opened, is whole
    path.write_bytes(data)
    with pytest.raises(RefusalError, match="not a whole parquet file"):
        stream(path)
    monkeypatch.setattr(stream_module, "_PIECE", 100)
    for broken, sentence in ((b"\0", r"a zero byte at offset 990\)"), (b"\xff", r"byte 0xff at offset 990\)")):
        (tmp_path / "broken.txt").write_bytes(b"123456789\n" * 99 + broken + b"and more\n")
        with pytest.raises(RefusalError, match=sentence):
            stream(tmp_path / "broken.txt")
