from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from tests.commands.scan.survey.sample import CARDS, sample_survey


@pytest.mark.parametrize("name", ["survey.json", "survey.json.gz"])
def test_round_trip_is_exact(tmp_path: Path, name: str) -> None:
    survey = sample_survey()
    path = survey.save(tmp_path / name)
    assert Survey.load(path) == survey
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_equal_surveys_are_equal_files(tmp_path: Path) -> None:
    a, b = sample_survey(sequences=3), sample_survey(sequences=4, first_sample=3)
    for name in ("x.json", "x.json.gz"):
        one, two = (a | b).save(tmp_path / f"1{name}"), (b | a).save(tmp_path / f"2{name}")
        assert one.read_bytes() == two.read_bytes()


def test_broken_numbers_stay_strict_json(tmp_path: Path) -> None:
    ledger = SurveyBuilder(CARDS)
    ledger.observe("entropy", "value", "decoder", "self", 0, np.array([[np.nan, np.inf, -0.0]]))
    survey = ledger.survey({"verify": {"largest_difference": float("inf")}})
    path = survey.save(tmp_path / "survey.json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    assert Survey.load(path) == survey


def test_a_large_survey_stays_small(tmp_path: Path) -> None:
    survey = sample_survey(layers=30, heads=9, sequences=64, tokens=256)
    assert survey.save(tmp_path / "survey.json").stat().st_size < 1_000_000
    assert survey.save(tmp_path / "survey.json.gz").stat().st_size < 250_000


def test_strange_names_are_saved(tmp_path: Path) -> None:
    survey = sample_survey(1, 1, 1, name="caf\u00e9 \U0001f600 \udcff")
    assert Survey.load(survey.save(tmp_path / "s.json")).provenance["model"]["name"].startswith("caf\u00e9 \U0001f600")


def refused(path: Path, sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence) as caught:
        Survey.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_no_survey(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.json", "There is no file")
    refused(tmp_path, "There is no file .*survey.json")
    for content in (b"", b"hello", b"\xff\xfe\x00", b"[1, 2]", b'{"format": "other"}', b"3", b"[" * 100_000):
        path = tmp_path / "foreign.json"
        path.write_bytes(content)
        refused(path, "is not a survey")


@pytest.mark.parametrize("name", ["survey.json", "survey.json.gz"])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_files_that_are_cut_off(tmp_path: Path, name: str, share: float) -> None:
    path = sample_survey().save(tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path, "is cut off or damaged")


def test_surveys_of_another_version(tmp_path: Path) -> None:
    path = sample_survey(1, 1, 1).save(tmp_path / "survey.json")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "version": 99}))
    refused(path, "survey of version 99 but this attnscope reads version 1")


def _edit(data: Any, where: list[Any], value: Any) -> None:
    for step in where[:-1]:
        data = data[step]
    data[where[-1]] = value


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["cells", 0, "key"], ["entropy"]),
        (["cells", 0, "key", 4], 10**12),
        (["cells", 0, "key", 0], "unknown"),
        (["cells", 0, "shape"], [7]),
        (["cells", 0, "moments", "total"], [1]),
        (["cells", 0, "moments", "total"], ["1p99999999999"]),
        (["cells", 0, "moments", "count"], -1),
        (["cells", 0, "sketch"], "x"),
        (["cells", 0, "peak"], None),
        (["cards"], 3),
        (["cards", "entropy", "colour"], "red"),
        (["provenance"], []),
        (["provenance", "model"], "a name"),
    ],
)
def test_files_that_are_damaged_inside(tmp_path: Path, where: list[Any], value: Any) -> None:
    path = sample_survey(1, 2, 2).save(tmp_path / "survey.json")
    data = json.loads(path.read_text())
    del data["sha256"]  # what a person deletes who edits a file
    _edit(data, where, value)
    path.write_text(json.dumps(data))
    refused(path, "is damaged")


def test_compression_is_detected_by_content_not_name(tmp_path: Path) -> None:
    survey = sample_survey(1, 1, 1)
    path = tmp_path / "survey.json"
    path.write_bytes(gzip.compress(survey.save(path).read_bytes()))
    assert Survey.load(path) == survey


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match=r"could not be written \(No such file or directory\)"):
        sample_survey(1, 1, 1).save(tmp_path / "missing" / "survey.json")


def test_a_target_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "survey.json").mkdir()
    with pytest.raises(RefusalError, match="cannot be written"):
        sample_survey(1, 1, 1).save(tmp_path / "survey.json")
    assert [p.name for p in tmp_path.iterdir()] == ["survey.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_the_old_survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = sample_survey(1, 1, 1).save(tmp_path / "survey.json")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RefusalError, match=r"could not be written \(.*\): choose another path"):
        sample_survey(2, 2, 2).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["survey.json"]


def test_an_interruption_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sample_survey(1, 1, 1).save(tmp_path / "survey.json")
    assert list(tmp_path.iterdir()) == []
