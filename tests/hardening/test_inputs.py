"""Corpora and surveys that are endless, unpack to gigabytes, or are damaged in valid containers."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from attnscope.commands.scan.plan import ScanPlan
from attnscope.commands.scan.shard import Checkpoint
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core import files as bounded
from attnscope.core.errors import RefusalError
from attnscope.data import formats
from attnscope.data.read import read
from tests.hardening.test_arguments import refused

SMALL = 1 << 20  # a bound for tests: reading a gigabyte takes seconds


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bounded, formats):
        monkeypatch.setattr(module, "LARGEST", SMALL)


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        read(source, **options)
    return str(caught.value)


def parquet(path: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_parquet_column_of_numbers(tmp_path: Path) -> None:
    assert "holds double, not text" in refusal(parquet(tmp_path / "c.parquet", text=[1.5, 2.5]))


def test_two_parquet_columns_of_one_name(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    assert "several columns called 'text'" in refusal(tmp_path / "c.parquet")


def test_parquet_that_is_not_utf8(tmp_path: Path) -> None:
    content = pyarrow.array([b"fine", b"caf\xe9"]).view(pyarrow.string())
    sentence = refusal(parquet(tmp_path / "c.parquet", text=content))
    assert "Row 1 of the column 'text'" in sentence
    assert "0xe9 at offset 3" in sentence


def test_parquet_of_all_rows(tmp_path: Path) -> None:
    rows = [None if i % 7 == 0 else f"row {i}" for i in range(3000)]
    assert read(parquet(tmp_path / "c.parquet", text=rows)).documents == tuple(row for row in rows if row is not None)


@pytest.mark.usefixtures("small")
def test_parquet_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "c.parquet", text=["x" * 10_000] * 2000)
    assert path.stat().st_size < 100_000
    assert "is larger than 1 MB" in refusal(path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["c.txt.gz", "c.jsonl.gz"])
def test_gzip_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b" " * (SMALL + 1)))
    assert "is larger than 1 MB" in refusal(tmp_path / name)


@pytest.mark.usefixtures("small")
def test_gzip_in_several_parts_counts_together(tmp_path: Path) -> None:
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"word " * 1000) * 1000)
    assert "is larger than 1 MB" in refusal(tmp_path / "c.txt.gz")


@pytest.mark.usefixtures("small")
def test_a_device_without_end() -> None:
    assert "'/dev/zero' is a device" in refusal("/dev/zero")


@pytest.mark.usefixtures("small")
def test_endless_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"word " * SMALL)))
    assert "Standard input is larger than 1 MB" in refusal("-")


def test_reading_stops_at_the_bound() -> None:
    class Endless:
        given = 0

        def read(self, size: int = -1) -> bytes:
            self.given += size
            return b"x" * size

    endless = Endless()
    with pytest.raises(RefusalError, match="the most that is read"):
        bounded.read_all(endless, "it", 5 << 20)
    assert endless.given <= (5 << 20) + 1
    assert bounded.read_all(io.BytesIO(b"x" * SMALL), "it", SMALL) == b"x" * SMALL


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["survey.json.gz", "survey.json"])
def test_survey_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b" " * (SMALL + 1)))
    assert "is larger than 1 MB" in refused("report", str(tmp_path / name))


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the document of a survey with one measure and a cell of two heads."""
    import numpy as np

    from attnscope.commands.scan.survey.cell import Cell, Key
    from attnscope.core.registry import measures

    card = measures()["entropy"].card
    cell = Cell.of(np.ones((3, 2)), {}, None)
    key = Key("entropy", card.parts[0], "model", "self", 0)
    return json.loads(json.dumps(Survey({"model": {}, "corpus": {}}, {"entropy": card}, {key: cell}).to_json()))


@pytest.mark.parametrize(
    "shape", [[10**9], [10**18], [2**70], [-1], [1], [3], [1, 2], [2, 1], [2] * 1000, [], ["x"], None, "22", {}]
)
def test_a_cell_of_another_shape_than_its_numbers(tmp_path: Path, survey: dict[str, Any], shape: Any) -> None:
    document = {**survey, "cells": [{**survey["cells"][0], "shape": shape}]}
    (tmp_path / "survey.json").write_text(json.dumps(document))
    with pytest.raises(RefusalError, match="is damaged"):
        Survey.load(tmp_path / "survey.json")


def test_unchanged_survey_is_accepted(tmp_path: Path, survey: dict[str, Any]) -> None:
    (tmp_path / "survey.json").write_text(json.dumps(survey))
    assert len(Survey.load(tmp_path / "survey.json").cells) == 1


def test_folder_in_place_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "survey.partial.json").mkdir()
    assert "survey.partial.json" in refused("scan", "pocket", "--out", str(tmp_path))
    plan = ScanPlan("m", "c", "t", ("entropy",), 1, None, 1, 0, "float32", "cpu", "float32", "0")
    keeper = Checkpoint(tmp_path / "survey.partial.json", plan)
    for ask in (keeper.clear, keeper.restore):
        with pytest.raises(RefusalError, match="is a folder"):
            ask()
