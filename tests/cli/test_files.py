"""Texts on the command line: themselves, or files of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnscope.cli.files import text_or_file
from attnscope.core.errors import RefusalError


def test_a_text_is_itself_and_a_file_is_its_content(tmp_path: Path) -> None:
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
