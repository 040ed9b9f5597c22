"""Names of files that are made from texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.names import LONGEST_SLUG, files_named, named_for, slug


@pytest.mark.parametrize(
    ("about", "name"),
    [
        (("The opposite of hot is",), "the-opposite-of-hot-is"),
        (("The opposite of hot is", None, " cold"), "the-opposite-of-hot-is-cold"),
        (("  Café, déjà vu!  ",), "cafe-deja-vu"),
        ((Path("photos/Old House.PNG"), "a house"), "old-house-a-house"),
    ],
)
def test_slug_has_the_words_of_a_text(about: tuple[str | Path | None, ...], name: str) -> None:
    assert slug(*about) == name


@pytest.mark.parametrize("text", ["", "...", "東京", "東京 is", "7", "a" * 100, "The dog and the cat " * 5])
def test_slug_ends_with_a_hash_if_letters_are_left_out(text: str) -> None:
    assert re.fullmatch("([a-z0-9]+-)*[0-9a-f]{6}", slug(text))
    assert slug(text) != slug(f"{text}東")


def test_cut_slug_keeps_the_target() -> None:
    long = "The capital of France is Paris and the capital of Italy is"
    found = [slug(long, None, target) for target in (" Rome", " Milan")]
    assert "rome" in found[0]
    assert "milan" in found[1]


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_slug_is_short_and_plain(about: list[str]) -> None:
    found = slug(*about)
    assert 0 < len(found) <= LONGEST_SLUG
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", found)
    assert found == slug(*about)


def test_files_of_all_texts_are_found(tmp_path: Path) -> None:
    names = ["view.json", named_for("view.json", "a dog"), named_for("view.html", "a dog"), "survey-1.json"]
    for name in names:
        (tmp_path / name).touch()
    assert [file.name for file in files_named(tmp_path, "view.json")] == ["view.json", "view-a-dog.json"]
    assert files_named(tmp_path, "survey.json") == []
    assert files_named(tmp_path / "missing", "view.json") == []
