"""A new scan removes an interrupted one in its folder only after it has loaded its model and corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import attnscope
from tests.specimens import TEXT, save_specimen

PARTIAL = "survey.partial.json"
NOTICE = "will be replaced; --resume would continue it."


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("specimen"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / PARTIAL).write_text("an afternoon's work")
    (tmp_path / "corpus.txt").write_text(TEXT)
    return tmp_path / "out"


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-corpus.txt"],
        ["corpus.txt", "--measures", "entropie"],
        ["corpus.txt", "--dtype", "float33"],
        ["corpus.txt", "--threshold", "nonsense"],
        ["corpus.txt", "--max-tokens", "100000"],
    ],
)
def test_typo_does_not_remove_an_interrupted_scan(specimen: Path, folder: Path, words: list[str]) -> None:
    result = attnscope("scan", specimen, *words, "--out", "out", cwd=folder.parent)
    assert result.returncode == 2, result.stderr
    assert (folder / PARTIAL).read_text() == "an afternoon's work"
    assert sorted(path.name for path in folder.iterdir()) == [PARTIAL]


def test_missing_model_does_not_remove_an_interrupted_scan(folder: Path) -> None:
    result = attnscope("scan", "./no-such-model", "corpus.txt", "--out", "out", cwd=folder.parent)
    assert result.returncode == 2
    assert (folder / PARTIAL).read_text() == "an afternoon's work"


def test_replacement_of_an_interrupted_scan_is_announced(specimen: Path, folder: Path) -> None:
    words = ("scan", specimen, "corpus.txt", "--out", "out", "--samples", "2", "--max-tokens", "8")
    result = attnscope(*words, cwd=folder.parent)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[0] == f"attnscope: the interrupted scan in out {NOTICE}"
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "survey.json"]
    again = attnscope(*words, cwd=folder.parent)
    assert again.returncode == 0
    assert NOTICE not in again.stderr  # the first scan had finished


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("text_or_stream", "nothing was done yet, and the earlier interrupted scan is kept."),
        ("provenance", "nothing was done yet."),
    ],
)
def test_ctrl_c_says_which_scan_is_kept(
    specimen: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, said: str
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"attnscope.commands.scan.run.{step}", interrupted)
    result = attnscope("scan", specimen, "corpus.txt", "--out", "out", cwd=folder.parent)
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == f"attnscope: interrupted; {said}"
    assert (folder / PARTIAL).exists() == ("earlier interrupted scan" in said)
