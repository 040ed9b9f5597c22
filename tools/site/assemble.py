"""Copy the pages of the site into a folder with the layout of the repository, so that links stay valid.

README.md becomes the first page. Files beside the pages that pages link to (a schema, a
workflow) are copied too. A broken link is left unchanged: Sphinx reports it, and `make docs` fails.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AT_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
NOT_PAGES = ("conf.py", "style")
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def assemble(source: Path) -> None:
    """Copy the pages of the repository into a new folder; generated pages are added later."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source / "docs", ignore=shutil.ignore_patterns(*NOT_PAGES, ".ipynb_checkpoints"))
    for name in AT_THE_ROOT:
        shutil.copy(ROOT / name, source / name)
    shutil.copy(ROOT / "README.md", source / "index.md")
    for page in sorted(source.rglob("*.md")):
        _bring_linked_files(page, source)


def _bring_linked_files(page: Path, source: Path) -> None:
    """Copy the files of the repository that a page links to and that are not pages."""
    for target in LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / target).resolve()
        if there.exists() or not there.is_relative_to(source):
            continue
        here = ROOT / there.relative_to(source)
        if here.is_file():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(here, there)
