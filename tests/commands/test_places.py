"""Where records are kept and found: homes, compressed files, what `--save` and `--json` leave, the names of pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnscope
from attnscope.cli.main import app
from attnscope.commands.compare.record import Comparison
from tests.commands.samples import sample
from tests.commands.scan.survey.sample import sample_survey


def test_a_home_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sample("collapse").save("~/collapse.json") == tmp_path / "collapse.json"
    assert attnscope.report("~/collapse.json", "~/new/page.html") == tmp_path / "new" / "page.html"
    assert not (Path.cwd() / "~").exists()


def test_compressed_records_are_found_in_their_folder(tmp_path: Path) -> None:
    path = sample("survey").save(tmp_path / "survey.json.gz")
    assert attnscope.load(tmp_path) == attnscope.load(path)
    assert attnscope.Survey.load(tmp_path) == attnscope.load(path)
    assert attnscope.load(path).page_name(path) == "report.html"
    assert sample("paths").page_name(Path("p.json.gz")) == "p.html"


def test_what_json_prints_can_be_kept_and_read(tmp_path: Path) -> None:
    """`attnscope paths --json > p.json` is the only copy where no folder was asked for."""
    import json

    report = sample("paths")
    (tmp_path / "p.json").write_text(json.dumps(report.to_json() | {"sentences": [], "files": {"data": None}}))
    assert attnscope.load(tmp_path / "p.json").to_json() == report.to_json()


def test_a_comparison_can_be_kept(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        sample_survey(2, 2, 2, seed=seed).save(tmp_path / f"{name}.json")
    words = ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--save", str(tmp_path / "both.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    kept = attnscope.load(tmp_path / "both.json")
    assert isinstance(kept, Comparison)
    assert kept.changes == attnscope.compare(tmp_path / "a.json", tmp_path / "b.json").changes
    again = CliRunner().invoke(app, ["report", str(tmp_path / "both.json")])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "both.html").exists()


def test_a_capacity_can_be_kept(tmp_path: Path) -> None:
    words = ["capacity", "-n", "16", "-k", "1", "--budget", "0", "--save", str(tmp_path / "c.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    kept = attnscope.load(tmp_path / "c.json")
    assert kept.KIND == "capacity"
