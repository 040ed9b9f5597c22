"""Every console and Python block of the pages runs, except those marked with `# needs:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ALL, FENCE, Block, blocks, check, pages, run_commands, run_page

SHOWN = [page for page in pages() if page.name != "README.md" and any(not one.needs for one in blocks(page))]
MARKED = [one for page in pages() for one in blocks(page) if one.needs]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: f"{page.parent.name}/{page.name}")
@pytest.mark.filterwarnings("default")  # warnings of other libraries are not errors here
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path, commands=ALL)


@pytest.mark.parametrize("block", MARKED, ids=str)
def test_blocks_that_need_something_else_still_compile_and_parse(block: Block) -> None:
    check(block)


def _of(text: str) -> Block:
    (found,) = FENCE.findall(text)
    return Block(Path(__file__), 1, *found)


def test_a_page_that_does_not_run_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nassert attnscope.no_such_name\n```\n")
    with pytest.raises(AttributeError, match="no_such_name"):
        run_page(page, tmp_path)


@pytest.mark.parametrize("line", ["attnscope scam pocket", "attnscope scan pocket --sample 8"])
def test_unknown_command_in_a_page_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"scam|sample"):
        check(_of(f"```console\n# needs: a cluster\n$ {line}\n```\n"))


def test_block_that_cannot_run_must_be_marked() -> None:
    with pytest.raises(AssertionError, match="needs"):
        run_commands(_of("```console\n$ pip install attnscope\n```\n"))


def test_a_command_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="no-such-folder"):
        run_commands(_of("```console\n$ attnscope report no-such-folder\n```\n"))
