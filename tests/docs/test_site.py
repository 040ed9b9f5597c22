"""The site is complete: every page is in the navigation, the reference names everything, notebooks have no outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from attnscope.cli.main import app
from attnscope.commands.records import KINDS
from attnscope.commands.watch.rule import rules
from attnscope.core.registry import constructions, explanations, findings, measures
from tests.docs.lists import ROOT
from tools.site.assemble import assemble
from tools.site.navigation import NAVIGATION
from tools.site.reference import INDEX, pages
from tools.site.rooms import drawing, layers, torch_free

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MADE = {"docs/reference/index", "docs/gallery/index", "docs/contributing/rooms"}  # when the site is built


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return dict(pages())


def _resolved(above: str, below: str) -> str:
    return os.path.normpath(Path(above).parent / below)


def test_navigation_lists_exactly_the_existing_pages() -> None:
    placed = {_resolved(above, one) for above, below in NAVIGATION.items() for one in below if "self" not in one}
    placed |= {_resolved("docs/reference/index", page) for page, _, _ in INDEX if page.startswith("..")}
    there = [*(ROOT / "docs").rglob("*.md"), *NOTEBOOKS]
    named = {str(page.relative_to(ROOT).with_suffix("")) for page in there}
    named |= {"CONTRIBUTING", "CHANGELOG", "CODE_OF_CONDUCT", "SECURITY"}
    assert placed - MADE == named


def test_assembled_pages_keep_their_paths_and_linked_files(tmp_path: Path) -> None:
    assemble(tmp_path / "source")
    assert (tmp_path / "source" / "index.md").read_text("utf-8") == (ROOT / "README.md").read_text("utf-8")
    assert (tmp_path / "source" / "docs" / "scan.md").exists()
    assert (tmp_path / "source" / "src/attnscope/commands/scan/survey/survey-1.schema.json").exists()
    assert not (tmp_path / "source" / "docs" / "conf.py").exists()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("measures", measures),
        ("findings", findings),
        ("findings", rules),
        ("constructions", constructions),
        ("explanations", explanations),
        ("formats", lambda: KINDS),
    ],
)
def test_the_reference_names_everything(reference: dict[str, str], page: str, names) -> None:
    missing = [name for name in names() if f"`{name}`" not in reference[page] and f"## {name}\n" not in reference[page]]
    assert missing == []


def test_every_command_has_a_page_with_its_options(reference: dict[str, str]) -> None:
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {name.removeprefix("commands/") for name in reference if name.startswith("commands/")} == {
        *commands,
        "index",
    }
    assert "| `--samples <int range>` | Maximum number of sequences. (x>=1) | `64` |" in reference["commands/scan"]


def test_every_public_name_is_on_one_page_of_the_reference(reference: dict[str, str]) -> None:
    import attnscope

    shown = "\n".join(text for name, text in reference.items() if name.startswith("python/"))
    public = [name for name in attnscope.__all__ if not name.startswith("_")]
    assert [name for name in public if shown.count(f"\n## {name}\n") != 1] == []


def test_the_drawing_shows_every_room_once() -> None:
    ladder = layers()
    drawn = drawing(ladder, torch_free())
    rooms = [room for step in ladder for room in step]
    assert len(rooms) == len(set(rooms)) == 18
    assert [room for room in rooms if drawn.count(f">{room}</text>") != 1] == []
    assert "\n\n" not in drawn
    assert torch_free() <= set(rooms)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.stem)
def test_a_notebook_is_valid_and_without_outputs(notebook: Path) -> None:
    document = json.loads(notebook.read_text("utf-8"))
    assert (document["nbformat"], document["metadata"]["kernelspec"]["name"]) == (4, "python3")
    cells = document["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert cell["cell_type"] in ("code", "markdown")
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), notebook.name, "exec")
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "clear the outputs before committing"
