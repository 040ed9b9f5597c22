"""All commands save their record and its page in attnscope-NAME or --out, and print the path.

Commands that read records write only what was requested, except that `report` and `timeline` write their page.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from attnscope.cli.files import model_folder
from attnscope.cli.main import app
from attnscope.commands.view.record import View
from attnscope.core.errors import RefusalError
from attnscope.papers import cards
from attnscope.papers import run as driver
from tests.command import attnscope
from tests.papers.stand_in import stand_in
from tests.specimens import save_specimen

SCAN = ("--samples", "2", "--max-tokens", "12", "--measures", "entropy")

# commands with a record: arguments, folder, and files in it
FINDS = {
    "scan": (("model", *SCAN), "model", ["report.html", "survey.json"]),
    "collapse": (
        ("model", "--samples", "2", "--max-tokens", "12", "--variants", "san", "--no-bounds"),
        "model",
        ["collapse.html", "collapse.json"],
    ),
    "paths": (
        ("model", "Hello", "--draws", "0", "--no-mlp", "--top", "1"),
        "model",
        ["paths-hello.html", "paths-hello.json"],
    ),
    "explain": (
        ("model", "Hello", "--method", "relevance"),
        "model",
        ["explanation-hello.html", "explanation-hello.json"],
    ),
    "view": (("model", "Hello"), "model", ["view-hello.html", "view-hello.json"]),
    "treat": (
        ("model", "--remedy", "qk_clip", "--samples", "4", "--max-tokens", "12"),
        "model",
        ["treatment.html", "treatment.json"],
    ),
    "compile": (("permutation", "-n", "6"), "permutation-n6-k1", ["head.html", "head.safetensors"]),
    "capacity": (("-n", "12", "-k", "1", "--budget", "0"), "capacity-n12-k1", ["capacity.html", "capacity.json"]),
    "reproduce": (("stand_in", "--seeds", "1"), "stand_in", ["charts", "page.html", "results.json"]),
}
WITH_OUT = {"treat": ("model",)}  # a treated model is large, so it is saved only with --out
READS = {"report", "compare", "export", "measures", "merge", "timeline", "variants", "cite", "doctor", "atlas"}


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("specimen"))


@pytest.fixture
def here(tmp_path: Path, specimen: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a model, with a fast experiment and without drawing charts."""
    blank = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"></svg>'
    monkeypatch.setattr("attnscope.reports.export.render", lambda *_, **__: blank)
    monkeypatch.setattr(driver, "experiments", lambda: {"stand_in": stand_in})
    monkeypatch.setattr(cards, "cards", lambda: {"stand_in": stand_in.card})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(specimen)
    return tmp_path


def made_in(here: Path) -> list[str]:
    return sorted(path.name for path in here.iterdir() if path.name not in ("model", "cache"))


def inside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_command_either_writes_a_record_or_reads_one() -> None:
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert known == FINDS.keys() | READS


@pytest.mark.parametrize("command", FINDS)
def test_records_are_saved_in_the_default_folder_and_its_path_is_printed(command: str, here: Path) -> None:
    words, name, files = FINDS[command]
    name = here.joinpath("model").resolve().name if name == "model" else name
    done = attnscope(command, *words)
    assert done.returncode == 0, done.stderr
    folder = Path(f"attnscope-{name}")
    assert made_in(here) == [folder.name]
    assert inside(folder) == files
    said = done.stdout.split()
    assert all(str(folder / file) in said for file in files)
    page = next(file for file in files if file.endswith(".html"))
    (folder / page).unlink()
    again = attnscope("report", folder)
    assert again.returncode == 0, again.stderr
    assert inside(folder) == files
    assert made_in(here) == [folder.name]


@pytest.mark.parametrize("command", FINDS)
def test_out_names_another_folder_even_with_json(command: str, here: Path) -> None:
    words, _, files = FINDS[command]
    done = attnscope(command, *words, "--out", "other", "--json")
    assert done.returncode == 0, done.stderr
    assert made_in(here) == ["other"]
    assert inside(Path("other")) == [*WITH_OUT.get(command, ()), *files]


def test_looked_up_answer_is_saved_only_on_request(here: Path) -> None:
    lookup = ("capacity", "-n", "256", "-k", "4")
    done = attnscope(*lookup)
    assert done.returncode == 0, done.stderr
    assert made_in(here) == []
    assert attnscope(*lookup, "--save", "kept.json").returncode == 0
    assert made_in(here) == ["kept.json"]
    assert attnscope(*lookup, "--out", "other").returncode == 0
    assert inside(Path("other")) == ["capacity.html", "capacity.json"]


def test_reading_commands_write_only_on_request(here: Path) -> None:
    for out in ("a", "b"):
        assert attnscope("scan", "model", *SCAN, "--out", out).returncode == 0
    before = made_in(here)
    assert attnscope("compare", "a", "b").returncode == 0
    assert attnscope("measures", "entropy").returncode == 0
    assert made_in(here) == before
    assert attnscope("compare", "a", "b", "--out", "both.html", "--save", "both.json").returncode == 0
    assert made_in(here) == sorted([*before, "both.html", "both.json"])


def test_report_of_a_folder_with_several_records_draws_them_all(here: Path) -> None:
    for command in ("scan", "collapse"):
        assert attnscope(command, *FINDS[command][0], "--out", "all").returncode == 0
    for page in Path("all").glob("*.html"):
        page.unlink()
    done = attnscope("report", "all", "--json")
    assert done.returncode == 0, done.stderr
    assert [Path(one["report"]).name for one in json.loads(done.stdout)] == ["report.html", "collapse.html"]
    assert inside(Path("all")) == ["collapse.html", "collapse.json", "report.html", "survey.json"]
    one_page = attnscope("report", "all", "--out", "page.html")
    assert one_page.returncode == 2
    assert "survey.json and collapse.json, but --out names one page" in one_page.stderr


def test_another_text_gets_another_page_and_the_same_text_says_that_it_is_replaced(here: Path) -> None:
    words = ("view", "model", "Hello", "--out", "other")
    first = attnscope(*words)
    assert "Page    other/view-hello.html" in first.stdout
    assert attnscope("view", "model", "Bye", "--out", "other").returncode == 0
    pages = ["view-bye.html", "view-bye.json", "view-hello.html", "view-hello.json"]
    assert inside(here / "other") == pages
    again = attnscope(*words)
    assert "Page (replaced) other/view-hello.html" in again.stdout
    assert inside(here / "other") == pages
    with pytest.raises(RefusalError, match=r"view-bye\.json and view-hello\.json: name the file itself"):
        View.load("other")
    assert View.load("other/view-bye.json").text == "Bye"
    drawn = json.loads(attnscope("report", "other", "--json").stdout)
    assert [Path(one["report"]).name for one in drawn] == ["view-bye.html", "view-hello.html"]


def test_two_models_of_one_name_do_not_share_a_folder(here: Path, specimen: Path) -> None:
    for parent in ("a", "b"):
        (here / parent).mkdir()
        (here / parent / "twin").mkdir()
        for file in specimen.iterdir():
            os.link(file, here / parent / "twin" / file.name)
    first = attnscope("scan", "a/twin", *SCAN)
    assert first.returncode == 0, first.stderr
    kept = Path("attnscope-twin/survey.json").read_bytes()
    second = attnscope("scan", here / "b" / "twin", *SCAN)
    assert second.returncode == 0, second.stderr
    assert "attnscope-twin holds results for another model of that name" in second.stderr
    assert "attnscope-twin-2/report.html" in second.stdout
    assert model_folder("b/twin", False) == Path("attnscope-twin-2")  # which belongs to this model now
    assert Path("attnscope-twin/survey.json").read_bytes() == kept
    assert model_folder("./a/../a/twin", False) == Path("attnscope-twin")
    assert model_folder("a/twin/config.json", True) == model_folder("a/twin", True) == Path("attnscope-twin-random")
    assert sorted(path.name for path in here.glob("attnscope-*")) == ["attnscope-twin", "attnscope-twin-2"]


def test_unreadable_files_do_not_block_a_default_folder(here: Path) -> None:
    usual = model_folder("pocket", False)
    usual.mkdir()
    for content in ("", "{}", "[]", '{"provenance": {"model": {"source": 5}}}', '{"provenance": null}'):
        (usual / "survey.json").write_text(content)
        assert model_folder("pocket", False) == usual
    (usual / "survey.json").write_text('{"provenance": {"model": {"source": "elsewhere/pocket"}}}')
    assert model_folder("pocket", False) == Path("attnscope-pocket-2")


def test_two_patterns_of_one_name_do_not_share_a_folder(here: Path) -> None:
    for parent, order in (("a", [1, 2, 3, 0]), ("b", [2, 3, 0, 1])):
        (here / parent).mkdir()
        np.save(here / parent / "p.npy", np.eye(4)[order])
    for source, folder in (("a/p.npy", "attnscope-p"), ("b/p.npy", "attnscope-p-2"), ("a/p.npy", "attnscope-p")):
        done = attnscope("compile", source)
        assert done.returncode == 0, done.stderr
        assert f"{folder}/head.safetensors" in done.stdout
        assert ("another pattern of that name" in done.stderr) == (folder == "attnscope-p-2")


def test_out_may_name_a_safetensors_file_for_the_head(here: Path) -> None:
    done = attnscope("compile", "permutation", "-n", "6", "--out", "mine.safetensors")
    assert done.returncode == 0, done.stderr
    assert made_in(here) == ["mine.safetensors"]
