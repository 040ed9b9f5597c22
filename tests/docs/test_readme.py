"""The README is short, its code runs, and its links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.lists import ROOT, section

README = (ROOT / "README.md").read_text("utf-8")
WORDS = 700
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def test_readme_is_short() -> None:
    assert len(README.replace("|", " ").split()) <= WORDS


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(block, "README.md", "exec"), {})
    assert "<html" in (tmp_path / "report.html").read_text("utf-8")


def test_readme_costs_equal_those_of_the_costs_page() -> None:
    rows = [line for line in section(README, "What it costs").splitlines() if line.startswith("| ")]
    assert len(rows) == 4
    costs = (ROOT / "docs" / "costs.md").read_text("utf-8")
    assert [row for row in rows if row not in costs] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_of_the_readme_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = page if not path else page.parent / path
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in _anchors(found)):
            broken.append(target)
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors of headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
