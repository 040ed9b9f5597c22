"""Without torch, commands that do not need it work, and the others are refused with how to install it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module, metadata
from importlib.resources import files
from pathlib import Path

import pytest

import attnscope
from attnscope.commands.doctor.record import Checkup
from attnscope.core.errors import BROUGHT, EXTRA, INSTALL, RefusalError, refuse_missing_torch, torch_is_installed
from attnscope.core.measure import FILE, ROOM, cards_json, measure_cards
from attnscope.core.registry import measures

WITHOUT = "import sys\nfor name in ('torch', 'transformers'): sys.modules[name] = None\n"
RUN = WITHOUT + "from attnscope.cli.main import run\nrun()\n"
REFUSAL = "attnscope: This needs torch, which is not installed: pip install 'attnscope[torch]'.\n"


def without_torch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process in which torch cannot be imported."""
    environment = {**os.environ, "COLUMNS": "110", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", RUN, *map(str, words)], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    attnscope.scan("pocket", samples=2, max_tokens=12).save(folder / "survey.json")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "pocket"),
        ("collapse", "pocket"),
        ("paths", "pocket", "a dog"),
        ("explain", "pocket", "a dog"),
        ("view", "pocket", "a dog"),
        ("treat", "pocket"),
        ("reproduce", "dong2021"),
        ("compile", "window", "-n", "8", "-k", "2"),
    ],
    ids=lambda words: words[0],
)
def test_commands_that_need_torch_are_refused_without_it_and_write_nothing(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = without_torch(*words, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", REFUSAL)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_need_torch_and_runs_do_not(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-100"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    done = without_torch("timeline", tmp_path)
    assert (done.returncode, done.stderr) == (2, REFUSAL)


@pytest.mark.parametrize(
    "words",
    [("--help",), ("measures",), ("measures", "entropy"), ("variants",), ("cite", "entropy"), ("reproduce",)],
    ids=" ".join,
)
def test_lists_need_no_torch(words: tuple[str, ...]) -> None:
    done = without_torch(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_records_are_drawn_compared_merged_and_exported_without_torch(survey: Path, tmp_path: Path) -> None:
    file = survey / "survey.json"
    for words, written in (
        (("report", file, "--out", tmp_path / "report.html"), "report.html"),
        (("compare", file, file, "--out", tmp_path / "compare.html"), "compare.html"),
        (("merge", file, "--out", tmp_path / "merged"), "merged/survey.json"),
        (("export", file, "--out", tmp_path / "table.csv"), "table.csv"),
    ):
        done = without_torch(*words)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / written).stat().st_size > 500


def test_doctor_reports_missing_torch_without_failing() -> None:
    done = without_torch("doctor", "--json")
    assert done.returncode == 0, done.stderr
    checks = {(one["group"], one["name"]): one for one in json.loads(done.stdout)["checks"]}
    assert checks["scan", "pocket"]["state"] == "missing"
    assert checks["scan", "pocket"]["advice"] == INSTALL
    assert checks["devices", "cpu"]["found"].endswith(" cores")
    shown = " ".join(without_torch("doctor").stdout.split())
    assert shown.endswith(f"To run models: {INSTALL}")


def test_python_raises_the_same_sentence() -> None:
    program = (
        WITHOUT
        + "import attnscope, json\n"
        + "assert attnscope.load and attnscope.compare and attnscope.timeline and attnscope.cite('entropy')\n"
        + "said = []\n"
        + "for ask in (lambda: attnscope.scan, lambda: attnscope.catalog(), lambda: attnscope.variants('local')):\n"
        + "    try: ask()\n"
        + "    except attnscope.RefusalError as refusal: said.append(str(refusal))\n"
        + "print(json.dumps(said))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [REFUSAL.removeprefix("attnscope: ").strip()] * 3


def test_other_import_errors_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError), refuse_missing_torch():
        import_module("no_such_module_anywhere")
    with pytest.raises(ModuleNotFoundError, match=r"torch\.no_such_part"), refuse_missing_torch():
        import_module("torch.no_such_part")  # torch is installed, so installing it would not help
    assert torch_is_installed()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert not torch_is_installed()
    with pytest.raises(RefusalError, match="needs transformers, which is not installed"), refuse_missing_torch():
        import_module("transformers")


def test_torch_extra_installs_what_the_refusal_names() -> None:
    asked = [line for line in metadata.requires("attnscope") or () if f"extra == '{EXTRA}'" in line.replace('"', "'")]
    assert [line.partition(">")[0] for line in asked] == list(BROUGHT)
    assert Checkup(()).well


def test_stored_cards_equal_those_of_the_measures() -> None:
    assert files(ROOM).joinpath(FILE).read_bytes() == cards_json(measures()), "write it anew with `make tables`"
    assert measure_cards() == {name: one.card for name, one in measures().items()}


def test_changed_measure_is_imported_instead_of_its_stored_card(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnscope.core import measure as room

    old = {name: {**one, "title": "old", "sha256": "0" * 64} for name, one in room._stored_cards().items()}
    monkeypatch.setattr(room, "_stored_cards", lambda: old)
    assert measure_cards()["entropy"].title == measures()["entropy"].card.title
