"""Exported tables are read back equal, and unsupported exports are refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

import attnscope
from attnscope.core.errors import RefusalError
from tests.command import attnscope as command
from tests.commands.scan.survey.sample import sample_survey

NUMBERS = ["count", "mean", "std", "min", "max", "p10", "p50", "p90", "nonfinite", "peak"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_survey().save(tmp_path_factory.mktemp("survey") / "survey.json")


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_what_is_read_back_is_the_table(saved: Path, tmp_path: Path, format: str) -> None:
    written = attnscope.export(saved, tmp_path / f"table.{format}")
    read = getattr(pandas, f"read_{format}")(written)
    table = sample_survey().table()
    assert list(read.columns) == list(table.columns)
    # Floats keep 15 digits in JSON and all of them elsewhere.
    pandas.testing.assert_frame_equal(
        read[NUMBERS].astype("float64"), table[NUMBERS].astype("float64"), rtol=1e-14 if format == "json" else 0
    )
    assert read["head"].isna().sum() == table["head"].isna().sum()
    places = [None if pandas.isna(text) else json.loads(text) for text in read["peak_where"]]
    assert places == list(table["peak_where"])


def test_without_a_name_it_goes_beside_the_record(saved: Path, tmp_path: Path) -> None:
    assert attnscope.export(saved) == saved.with_name("survey.parquet")
    assert attnscope.export(saved.parent, format="csv") == saved.with_name("survey.csv")
    assert (
        attnscope.export(sample_survey(), tmp_path / "own.csv").read_bytes()
        == saved.with_name("survey.csv").read_bytes()
    )


def test_what_is_unclear_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="no format 'xlsx': choose one of parquet, csv, json"):
        attnscope.export(saved, format="xlsx")
    with pytest.raises(RefusalError, match="is not a known format"):
        attnscope.export(saved, tmp_path / "table")
    with pytest.raises(RefusalError, match=r"let its name end in \.csv"):
        attnscope.export(saved, tmp_path / "table.parquet", format="csv")
    assert not list(tmp_path.iterdir())


def test_parquet_without_pyarrow_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.commands.records.find_spec", lambda name: None)
    with pytest.raises(RefusalError, match=r"attnscope\[parquet\]"):
        attnscope.export(saved)


def test_the_command(saved: Path, tmp_path: Path) -> None:
    done = command("export", saved, "--format", "csv", "--out", tmp_path / "t.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"Table: {tmp_path / 't.csv'}\n"
    assert command("export", saved, "--out", tmp_path / "none" / "t.csv").returncode == 2
    assert command("export", tmp_path / "missing.json").returncode == 2


def test_no_torch_is_needed(saved: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        f"import attnscope; attnscope.export({str(saved)!r}, {str(tmp_path / 't.csv')!r})"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
