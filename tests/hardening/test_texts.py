"""Arguments that cannot be paths are texts where a text is expected, and are refused elsewhere."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnscope
from attnscope.cli.files import checked_file, text_or_file
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from tests.hardening.test_arguments import refused


@pytest.mark.parametrize("length", [1, 254, 255, 256, 257, 500, 1023, 1024, 5000])
@pytest.mark.parametrize("letter", ["x", "é", "語", "a "])
def test_a_line_of_any_length_is_a_text(length: int, letter: str) -> None:
    text = (letter * length)[:length]
    assert text_or_file(text) == text


@given(st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"]), max_size=600))
def test_any_line_is_a_text_or_a_sentence(text: str) -> None:
    with suppress(RefusalError):
        assert text_or_file(text) == text


@given(st.text(max_size=600))
def test_any_string_is_a_path_or_a_sentence(text: str) -> None:
    with suppress(RefusalError):
        assert isinstance(named_path(text), Path)


HOMELESS = "~nosuchuser/x"


@pytest.mark.parametrize(
    "words",
    [
        ("scan", HOMELESS),
        ("scan", "pocket", HOMELESS),
        ("scan", "pocket", "--out", HOMELESS),
        ("paths", HOMELESS, "A text."),
        ("paths", "pocket", "A text.", "--out", HOMELESS),
        ("report", HOMELESS),
        ("compare", HOMELESS, "b"),
        ("collapse", HOMELESS),
        ("compile", f"{HOMELESS}.npz"),
        ("compile", "--model", HOMELESS, "--text", "A text."),
    ],
    ids=" ".join,
)
def test_unknown_home_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "~nosuchuser, who has no home folder here" in refused(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "a\0b"),
        ("paths", "a\0b", "A text."),
        ("collapse", "a\0b"),
        ("compile", "a\0b.npz"),
    ],
    ids=lambda words: words[0],
)
def test_zero_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    assert "zero byte" in refused(*words)


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that cannot be searched, even by root."""
    folder = tmp_path / "locked"
    folder.mkdir()
    own = os.stat

    def stat(path: Any, *rest: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{folder}/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return own(path, *rest, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "{}/model"),
        ("scan", "pocket", "{}/corpus.txt"),
        ("scan", "pocket", "--out", "{}/out"),
        ("paths", "{}/model", "A text."),
        ("paths", "pocket", "{}/text.txt"),
        ("report", "{}/survey.json"),
        ("compare", "{}/a", "b"),
        ("collapse", "{}/model"),
        ("compile", "{}/pattern.npz"),
        ("compile", "permutation", "-n", "4", "--out", "{}/head.safetensors"),
        ("capacity", "-n", "8", "-k", "2", "--chart", "{}/chart.png"),
    ],
    ids=" ".join,
)
def test_folders_without_permission_are_refused(locked: Path, words: tuple[str, ...]) -> None:
    assert "Permission denied" in refused(*(word.format(locked) for word in words))


def test_links_to_themselves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "leads back to itself" in refused("scan", str(tmp_path / "loop"))


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "pocket", "--out", ""),
        ("scan", "pocket", "--out="),
        ("collapse", "pocket", "--out", ""),
        ("paths", "pocket", "A text.", "--out", ""),
        ("paths", "pocket", "A text.", "--chart", ""),
        ("compile", "permutation", "-n", "4", "--out", ""),
        ("compare", "a", "b", "--out", ""),
        ("report", ""),
        ("reproduce", "dong2021", "--out", ""),
    ],
    ids=" ".join,
)
def test_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "is empty" in refused(*words)
    assert not list(tmp_path.iterdir())


def test_this_folder_by_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "survey.json" in refused("report", ".")


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(RefusalError, match="Standard input is closed"):
        text_or_file("-")


def test_standard_input_that_is_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    with pytest.raises(RefusalError, match=r"Standard input is not UTF-8.*0xe9 at offset 3"):
        text_or_file("-")


def test_python_refuses_what_the_command_line_does(tmp_path: Path) -> None:
    for model in ("x" * 300, HOMELESS, "a\0b"):
        with pytest.raises(RefusalError):
            attnscope.scan(model)
    with pytest.raises(RefusalError, match="no folder"):
        checked_file(tmp_path / "no" / "chart.png", "--chart", (".png",))
