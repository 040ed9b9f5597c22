"""`attnscope collapse` from the outside: what it prints, what it writes, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from attnscope.cli.collapse import collapse
from attnscope.commands.collapse import run as collapse_module
from attnscope.commands.collapse.record import Collapse
from attnscope.core.errors import RefusalError
from tests.specimens import TEXT, save_specimen

app = typer.Typer()
app.command()(collapse)
runner = CliRunner()


def run(*words: str) -> tuple[int, str, BaseException | None]:
    result = runner.invoke(app, list(words))
    return result.exit_code, result.stdout, result.exception


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_specimen(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(TEXT)
    return str(path)


SMALL = ("--samples", "2", "--max-tokens", "16")


def test_sentences_page_chart_and_file(model: str, text: str, tmp_path: Path) -> None:
    out, chart = tmp_path / "out", tmp_path / "chart.svg"
    code, said, error = run(model, text, *SMALL, "--out", str(out), "--chart", str(chart), "--published", "bert")
    assert (code, error) == (0, None), said
    flat = " ".join(said.split())
    assert "Attention alone" in flat
    assert "The whole model keeps" in flat
    assert "of what tells its tokens apart" in flat
    assert "Beside the published curves" in flat
    assert "a mask hides keys" not in flat  # on bounds, which are on the page
    data = json.loads((out / "collapse.json").read_text())
    assert list(data["curves"]) == ["san", "san+mlp", "san+skip", "whole"]
    page = (out / "collapse.html").read_text()
    assert "Content-Security-Policy" in page
    assert "a mask hides keys" in page
    assert "published" in page
    assert chart.read_text().startswith("<svg")
    assert sorted(p.name for p in out.iterdir()) == ["collapse.html", "collapse.json"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_json_alone_on_standard_output(model: str, text: str) -> None:
    code, said, error = run(
        model, text, *SMALL, "--variants", "whole,san", "--json", "--no-bounds", "--norm", "frobenius"
    )
    assert (code, error) == (0, None)
    data = json.loads(said)
    assert list(data["curves"]) == ["whole", "san"]
    assert data["norm"] == "frobenius"
    assert data["bounds"] == []
    assert data["provenance"]["versions"]["torch"]
    folder = Path(f"attnscope-{Path(model).name}")
    assert data["files"] == {
        "data": str(folder / "collapse.json"),
        "page": str(folder / "collapse.html"),
        "chart": None,
    }
    assert list(Collapse.load(folder).curves) == ["whole", "san"]


def test_random_weights_of_several_seeds(model: str) -> None:
    words = ("--random-init", "--seeds", "2", "--json", "--no-bounds", "--variants", "san")
    code, said, error = run(model + "/config.json", *SMALL, *words)
    assert (code, error) == (0, None)
    data = json.loads(said)
    assert data["weights"] == "random"
    assert len(data["curves"]["san"]["by_seed"]) == 2
    assert data["curves"]["san"]["by_seed"][0] != data["curves"]["san"]["by_seed"][1]
    assert data["curves"]["san"]["n"][0] == 4
    assert data["provenance"]["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--published", "GPT"), "no curves of 'GPT'"),
        (("--variants", "san,all"), "`variants=` cannot be 'all'"),
        (("--norm", "l7"), "`norm=` cannot be"),
        (("--seeds", "3"), "Weights that are not drawn"),
        (("--max-tokens", "100"), "64 positions"),
        (("--chart", "x.pdf"), "--chart makes"),
        (("--dtype", "int4"), "`dtype=` cannot be"),
        (("--stack", "encoder"), "no stack 'encoder'"),
    ],
)
def test_refusals_are_one_sentence(model: str, words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    _, _, error = run(model, *words, "--out", str(tmp_path / "out"))
    assert isinstance(error, RefusalError)
    assert reason in error.sentence
    assert not (tmp_path / "out").exists()


def test_a_shape_needs_random_weights() -> None:
    _, _, error = run("bert-base")
    assert isinstance(error, RefusalError)
    assert "--random-init" in error.sentence


def test_interruption_is_reported_and_leaves_no_files(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collapse_module, "measured", interrupted)
    result = runner.invoke(app, [model, *SMALL, "--out", str(tmp_path / "out")])
    assert result.exit_code == 130
    assert "nothing is written" in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_interruption_of_the_page_says_what_is_kept(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.reports.page.document_page", interrupted)
    result = runner.invoke(app, [model, *SMALL, "--out", str(tmp_path / "out")])
    assert result.exit_code == 130
    assert "collapse.json is written" in result.stderr
    assert Collapse.load(tmp_path / "out" / "collapse.json").curves


def test_help_imports_no_torch() -> None:
    code = "import sys, attnscope.cli.collapse; sys.exit(any(m in sys.modules for m in ('torch', 'altair', 'rich')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode == 0
