"""`attnscope reproduce` as a person types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from attnscope.cli.reproduce import reproduce
from attnscope.core.errors import RefusalError
from attnscope.core.hashes import hashed
from attnscope.papers import cards
from attnscope.papers import run as driver
from tests.papers.stand_in import stand_in
from tests.papers.test_reproduce import stopping_after

app = typer.Typer()
app.command()(reproduce)


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "experiments", lambda: {"stand_in": stand_in})
    monkeypatch.setattr(cards, "cards", lambda: {"stand_in": stand_in.card})
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def test_every_verdict_is_printed_and_exit_code_is_zero() -> None:
    done = CliRunner().invoke(app, ["stand_in", "--seeds", "1"])
    assert done.exit_code == 0, done.output
    assert "1 seed" in done.stdout
    for words in ("reproduced", "not reproduced", "contradicted", "not run", "attnscope-stand_in/page.html"):
        assert words in done.stdout
    assert Path("attnscope-stand_in/results.json").exists()


def test_json_is_the_only_output_on_stdout() -> None:
    done = CliRunner().invoke(app, ["stand_in", "--json", "--out", "o"])
    assert done.exit_code == 0
    printed = json.loads(done.stdout)
    assert hashed(printed) == json.loads(Path("o/results.json").read_text())


def test_paper_is_found_by_its_number() -> None:
    done = CliRunner().invoke(app, [f"arXiv:{stand_in.paper}", "--seeds", "1"])
    assert done.exit_code == 0, done.output
    assert Path("attnscope-stand_in/results.json").exists()


def test_the_list_says_what_is_claimed() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 0
    assert re.search(r"stand_in +Title .* +- +-", done.stdout)
    assert "Missed" in CliRunner().invoke(app, ["--verbose"]).stdout
    listed = json.loads(CliRunner().invoke(app, ["--json"]).stdout)
    assert [claim["name"] for claim in listed[0]["claims"]] == ["held", "missed", "denied", "left"]
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stand_im"], "Did you mean"),
        (["stand_in", "--preset", "papre"], "paper"),
        (["stand_in", "--resume"], "leave out `resume=`"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, RefusalError)  # which the console entry point turns into exit code 2
    assert says in done.exception.sentence
    assert list(Path.cwd().iterdir()) == []


def test_ctrl_c_keeps_the_checkpoint_and_resume_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = driver.reproduce

    def broken(*args: object, **kwargs: object) -> object:
        return whole(*args, **{**kwargs, "progress": stopping_after(9)})  # type: ignore[call-overload]

    monkeypatch.setattr(driver, "reproduce", broken)
    stopped = CliRunner().invoke(app, ["stand_in", "--out", "o"])
    assert stopped.exit_code == 130
    assert "--resume" in stopped.stderr
    assert Path("o/checkpoint/part-0.json").exists()
    monkeypatch.setattr(driver, "reproduce", whole)
    gone_on = CliRunner().invoke(app, ["stand_in", "--out", "o", "--resume", "--json"])
    assert gone_on.exit_code == 0
    assert json.loads(gone_on.stdout)["measured"] == driver.reproduce("stand_in").to_json()["measured"]


def test_neither_torch_nor_altair_is_imported_for_the_help() -> None:
    program = "import sys, attnscope.cli.reproduce; print({'torch', 'altair', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
