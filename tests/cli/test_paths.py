"""`attnscope paths` as a person types it: what is printed, what is written, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from attnscope.cli.paths import paths as command
from attnscope.commands.paths.record import PathReport
from attnscope.core.errors import RefusalError

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(command)
QUICK = ("--draws", "0", "--no-mlp", "--top", "2")
MAN, AND = "paths-the-old-man", "paths-the-old-man-and"  # names of files


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: str | Path, says: str) -> None:
    """Return the sentence of the refusal, which `attnscope.cli.main` prints before it exits with 2."""
    result = invoke(*words)
    assert isinstance(result.exception, RefusalError), (result.exception, result.output)
    assert says in result.exception.sentence
    assert result.stdout == ""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_text_is_decomposed_and_written() -> None:
    result = invoke("pocket", "The old man", "--target", " and", "--chart", "paths.svg", *QUICK)
    assert result.exit_code == 0, result.output
    for word in ("logit of ' and' after the last token", "the target is ' and'", "Largest single paths", f"{AND}.html"):
        assert word in result.stdout
    folder = Path("attnscope-pocket")
    report = PathReport.load(folder / f"{AND}.json")
    assert report.difference < 1e-11
    assert len(report.top) == 2
    assert "Content-Security-Policy" in (folder / f"{AND}.html").read_text()
    assert Path("paths.svg").read_text().startswith("<svg")


def test_json_is_all_that_is_printed_and_a_file_is_read() -> None:
    Path("words.txt").write_text("The old man")
    result = invoke("pocket", "words.txt", "--json", "--out", "here", "--position", "1", *QUICK)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["text"] == "The old man"
    assert data["position"] == 1
    assert data["sentences"]
    assert data["files"]["page"] == str(Path("here") / f"{MAN}.html")
    assert abs(sum(row["value"] for row in data["lengths"]) - data["value"]) < 1e-11


def test_heads_are_taken_out_as_asked_or_not_at_all() -> None:
    assert invoke("pocket", "The old man", "--effects", "zero", "--out", "zero", *QUICK).exit_code == 0
    effects = PathReport.load(Path("zero")).effects
    assert effects is not None
    assert (effects.replacement, len(effects.heads)) == ("zero", 24)
    result = invoke("pocket", "The old man", "--no-effects", "--out", "none", *QUICK)
    assert PathReport.load(Path("none")).effects is None
    assert "Heads taken out" not in result.stdout
    refused("pocket", "The old man", "--effects", "median", *QUICK, says="effects")


def test_standard_input_is_a_text_and_json_says_where_files_are() -> None:
    result = CliRunner().invoke(app, ["pocket", "-", "--json", *QUICK], input="The old man\n")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["text"] == "The old man"
    folder = Path("attnscope-pocket")
    assert data["files"] == {"data": str(folder / f"{MAN}.json"), "page": str(folder / f"{MAN}.html"), "chart": None}
    assert sorted(path.name for path in folder.iterdir()) == [f"{MAN}.html", f"{MAN}.json"]


def test_report_draws_the_page_again_without_torch() -> None:
    assert invoke("pocket", "The old man", "--out", "here", *QUICK).exit_code == 0
    Path(f"here/{MAN}.html").unlink()
    code = (
        "import sys; from attnscope.cli.main import run; sys.argv = ['attnscope', 'report', 'here'];\n"
        "try: run()\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Largest single paths" in done.stdout
    assert "Single paths" in Path(f"here/{MAN}.html").read_text()
    from attnscope.cli.main import app as whole

    surveys_only = CliRunner().invoke(whole, ["report", f"here/{MAN}.json", "--charts", "charts"])
    assert isinstance(surveys_only.exception, RefusalError)


def test_bad_input_leaves_nothing_behind() -> None:
    refused("pocket", "The old man", "--target", "thinge", says="Nearest tokens: ' thing'")
    refused("pocket", "The old man", "--position", "77", says="no position 77")
    refused("pocket", "The old man", "--dtype", "float16", says="choose one of float64, float32")
    refused("pocket", "The old man", "--stack", "encoder", says="no stack called 'encoder'")
    refused("pocket", "", says="The text is empty")
    refused("pocket", "The old man", "--chart", "picture.gif", says="--chart makes")
    refused("nowhere/at-all", "The old man", says="nowhere/at-all")
    assert list(Path().iterdir()) == []


def test_ctrl_c_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import attnscope.commands.paths.run as driver

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "freeze", interrupted)
    result = invoke("pocket", "The old man", *QUICK)
    assert result.exit_code == 130
    assert "nothing is written" in result.stderr
    assert list(Path().iterdir()) == []


def test_ctrl_c_while_drawing_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.commands.paths.page.render", interrupted)
    result = invoke("pocket", "The old man", "--out", "here", *QUICK)
    assert result.exit_code == 130
    assert f"{MAN}.json is written, the page is not" in result.stderr
    assert PathReport.load("here").top


def test_a_page_or_a_chart_that_cannot_be_drawn_leaves_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **options: object) -> None:
        raise RefusalError("no room to draw")

    monkeypatch.setattr("attnscope.commands.paths.chart.chart", failing)
    chart = ("--chart", "paths.svg", *QUICK)
    result = invoke("pocket", "The old man", "--out", "drawn", *chart)
    assert isinstance(result.exception, RefusalError)
    assert sorted(path.name for path in Path("drawn").iterdir()) == [f"{MAN}.html", f"{MAN}.json"]
    printed = invoke("pocket", "The old man", "--json", *chart)
    assert isinstance(printed.exception, RefusalError)
    kept = PathReport.load("drawn")
    assert json.loads(printed.stdout)["value"] == kept.value  # on standard output, where nothing is saved
    monkeypatch.setattr("attnscope.commands.paths.page.render", failing)
    result = invoke("pocket", "The old man", "--out", "here", *chart)
    assert isinstance(result.exception, RefusalError)
    assert [path.name for path in Path("here").iterdir()] == [f"{MAN}.json"]
    assert PathReport.load("here").lengths == kept.lengths


def test_reference_texts_are_read_from_a_file() -> None:
    Path("mine.txt").write_text("Once there was a king who had three sons, and all of them wanted to be king.")
    result = invoke("pocket", "The old man", "--reference", "mine.txt", "--out", "here", *QUICK)
    assert result.exit_code == 0, result.output
    found = PathReport.load(Path("here")).effects
    assert found is not None
    assert found.reference.endswith("from mine.txt")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--reference", "none.txt"), "There is no corpus file"),
        (("--reference", "mine.txt", "--no-effects"), "--reference gives the texts"),
        (("--reference", "mine.txt", "--effects", "zero"), "`reference=` gives the texts"),
        (("--reference", "mine.txt", "--head", "1.3"), "--reference gives the texts"),
    ],
)
def test_a_reference_that_cannot_be_used_is_refused(arguments: tuple[str, ...], says: str) -> None:
    Path("mine.txt").write_text("Once there was a king who had three sons, and all of them wanted to be king.")
    refused("pocket", "The old man", *arguments, *QUICK, says=says)
