"""`attnscope view` of a text and of the sequence behind a finding, and refusals before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnscope as package
from tests.command import attnscope
from tests.specimens import byte_tokenizer, tiny_t5

BLANK = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"></svg>'


@pytest.fixture(scope="module", autouse=True)
def _charts_are_not_drawn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("attnscope.reports.export", "attnscope.reports.export"):
            patch.setattr(f"{module}.render", lambda *_, **__: BLANK)
        yield


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scanned")
    words = ("--samples", "8", "--max-tokens", "64", "--measures", "sink_mass")
    done = attnscope("scan", "pocket", *words, "--view", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_a_report_links_the_view_of_the_sequence_behind_a_finding(scanned: Path) -> None:
    survey = package.Survey.load(scanned)
    (sample,) = survey.sequences
    report = (scanned / "report.html").read_text()
    assert f'href="view-{sample}.html#layer=' in report
    assert "Which head looks where?" in (scanned / f"view-{sample}.html").read_text()


def test_report_without_views_says_how_to_make_them(scanned: Path, tmp_path: Path) -> None:
    survey = package.Survey.load(scanned)
    (sample,) = survey.sequences
    kept = survey.save(tmp_path / "survey.json")
    assert attnscope("report", str(kept)).returncode == 0
    assert f"attnscope view pocket --from {kept} --sample {sample}" in (tmp_path / "report.html").read_text()
    done = attnscope("view", "pocket", "--from", str(kept), "--sample", str(sample), "--out", str(tmp_path), "--json")
    said = json.loads(done.stdout)
    assert tuple(said["inputs"][0]["tokens"]) == survey.excerpts[sample]
    assert said["files"]["page"] == str(tmp_path / f"view-sample-{sample}.html")
    assert package.load(tmp_path / f"view-sample-{sample}.json").to_json()["parts"] == said["parts"]


def test_view_of_a_source_and_its_target(tmp_path: Path) -> None:
    for part in (tiny_t5(), byte_tokenizer()):
        part.save_pretrained(tmp_path / "t5")
    done = attnscope("view", str(tmp_path / "t5"), "source text", "target", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    inputs = json.loads(done.stdout)["inputs"]
    assert inputs == package.view(tiny_t5(), ("source text", "target"), tokenizer=byte_tokenizer()).to_json()["inputs"]
    assert "targe" in "".join(inputs[1]["tokens"])  # shifted by one, as decoders read


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "Give a TEXT to view, or --from SURVEY --sample N"),
        (("text", "--from", "nowhere"), "leave one of them out"),
        (("text", "--sample", "3"), "Give a TEXT to view"),
        (("--from", "nowhere.json"), "nowhere.json"),
    ],
)
def test_impossible_arguments_are_refused_before_loading(
    words: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    done = attnscope("view", "pocket", *words, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (tmp_path / "out").exists()
