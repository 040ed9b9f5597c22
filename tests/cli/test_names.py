"""Names and texts on the command line are checked before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from attnscope.cli.files import text_or_file
from attnscope.cli.options import check_model
from attnscope.commands.collapse import record as collapse
from attnscope.commands.collapse import record as published
from attnscope.core.errors import RefusalError
from attnscope.core.files import neighbour_meant
from attnscope.hf.editing.surgery import CUTS
from attnscope.hf.loading.in_memory import SHAPES
from attnscope.hf.loading.options import Loading
from tests.command import offline
from tests.specimens import save_specimen

WRONG = {
    ("scan", "pokcet"): "Did you mean 'pocket'?",
    ("scan", "my-modle"): "Did you mean 'my-model'?",
    ("scan", "./folder/my-modle"): "Did you mean 'folder/my-model'?",
    ("scan", "pocket", "corpsu.txt"): "Did you mean 'corpus.txt'?",
    ("scan", "pocket", "--measures", "default,entropi"): "Did you mean 'entropy'?",
    ("scan", "pocket", "--dtype", "flot32"): "Did you mean 'float32'?",
    ("measures", "entropi"): "Did you mean 'entropy'?",
    ("variants", "gated_outptu"): "Did you mean 'gated_output'?",
    ("collapse", "pokcet"): "Did you mean 'pocket'?",
    ("collapse", "bert-base"): "--random-init",
    ("collapse", "pocket", "--variants", "san,whol"): "Did you mean 'whole'?",
    ("paths", "pokcet", "A text."): "Did you mean 'pocket'?",
    ("compile", "windwo", "-n", "8"): "Did you mean 'window'?",
    ("compile", "patern.npz"): "Did you mean 'pattern.npz'?",
    ("compile", "window", "-n", "8", "--method", "jont"): "Did you mean 'joint'?",
    ("compile", "window", "-n", "8", "--dtype", "flot32"): "Did you mean 'float32'?",
    ("compile", "--model", "pokcet", "--text", "A text."): "Did you mean 'pocket'?",
    ("capacity", "-n", "8", "-k", "2", "--dtype", "flot32"): "Did you mean 'float32'?",
    ("reproduce", "dong2012"): "Did you mean 'dong2021'?",
    ("reproduce", "dong2021", "--preset", "papre"): "Did you mean 'paper'?",
    ("report", "attnscop-pocket"): "Did you mean 'attnscope-pocket'?",
    ("compare", "attnscope-pocket", "atnscope-pocket"): "Did you mean 'attnscope-pocket'?",
}

# One process for all of them, which checks after each whether torch was imported.
PROGRAM = """
import sys
from attnscope.cli.main import app
from attnscope.core.errors import RefusalError
for words in {words!r}:
    try:
        app(list(words), standalone_mode=False)
        print("accepted")
    except RefusalError as refusal:
        print(refusal)
    heavy = {{"torch", "transformers"}} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("my-model", "folder/my-model", "attnscope-pocket"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("corpus.txt", "pattern.npz"):
        (tmp_path / file).write_text("text")
    return tmp_path


def test_wrong_names_are_refused_without_torch_and_leave_nothing(here: Path) -> None:
    before = sorted(here.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(words=list(WRONG))],
        capture_output=True,
        text=True,
        env=offline(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(WRONG)
    for (words, hint), sentence in zip(WRONG.items(), said, strict=True):
        assert hint in sentence, (words, sentence)
    assert sorted(here.rglob("*")) == before


def test_names_listed_without_torch_equal_the_registered_names() -> None:
    assert set(published.SHAPE_OF.values()) == set(SHAPES)
    assert set(collapse.VARIANTS) == set(CUTS)


def test_known_names_are_accepted(tmp_path: Path) -> None:
    check_model("pocket")
    check_model("bert-base", Loading(random_init=True), shapes=True)
    check_model(str(save_specimen(tmp_path / "model")))


def test_ctrl_c_while_a_model_is_downloaded_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.hf.loading.sources.find", interrupted)
    with pytest.raises(typer.Exit) as left:
        check_model("some/model")
    assert left.value.exit_code == 130
    assert "nothing was done yet" in capsys.readouterr().err


def test_only_similar_names_are_suggested(tmp_path: Path) -> None:
    (tmp_path / "survey.json").write_text("{}")
    assert neighbour_meant(tmp_path / "survy.json") == f" Did you mean '{tmp_path / 'survey.json'}'?"
    assert neighbour_meant(Path("nothing-like-it"), "pocket") == ""
    assert neighbour_meant(tmp_path / "not" / "there") == ""


def test_argument_is_a_text_or_the_content_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a story.txt").write_text("once upon a time")
    assert text_or_file("a story about nothing.txt really") == "a story about nothing.txt really"
    assert text_or_file(str(tmp_path / "a story.txt")) == "once upon a time"
    assert text_or_file("word") == "word"
    assert text_or_file("") == ""


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="is a folder"):
        text_or_file(str(tmp_path))
    with pytest.raises(RefusalError, match=r"There is no file 'story\.txt'"):
        text_or_file("story.txt")
