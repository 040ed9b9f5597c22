"""Folders of pictures or of sounds as corpora: what counts as one, what is drawn, what is refused."""

from pathlib import Path

import pytest

from attnscope.core.errors import RefusalError
from attnscope.data.read import gallery


def folder(place: Path, *names: str) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"-")
    return place


def test_pictures_in_the_order_of_their_names_also_below(tmp_path: Path) -> None:
    found = gallery(folder(tmp_path, "b.png", "a.JPG", "more/c.webp", "notes.pdf", ".hidden.png"))
    assert found is not None
    assert [file.name for file in found.files] == ["a.JPG", "b.png", "c.webp"]
    assert found.name == tmp_path.name


def test_one_file_is_a_corpus_too(tmp_path: Path) -> None:
    found = gallery(str(folder(tmp_path, "speech.wav") / "speech.wav"))
    assert found is not None
    assert found.name == "speech.wav"


@pytest.mark.parametrize("names", [("a.txt", "b.png"), ("a.jsonl.gz",), ("notes.pdf",), ()])
def test_texts_come_first_and_other_files_are_no_corpus_of_pictures(names: tuple[str, ...], tmp_path: Path) -> None:
    assert gallery(folder(tmp_path, *names)) is None


@pytest.mark.parametrize("source", [None, "-", "", "no such folder", "s3://bucket/photos", ["a text"]])
def test_gallery_of_something_else_is_none(source: object) -> None:
    assert gallery(source) is None


def test_two_kinds_in_one_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="pictures and sounds: give a folder of one kind"):
        gallery(folder(tmp_path, "a.png", "b.wav"))


def test_a_draw_depends_on_the_seed_alone_and_keeps_the_order(tmp_path: Path) -> None:
    found = gallery(folder(tmp_path, *(f"{number:02}.png" for number in range(20))))
    assert found is not None
    drawn = found.drawn(5, 0)
    assert drawn == found.drawn(5, 0)
    assert drawn != found.drawn(5, 1)
    assert list(drawn) == sorted(set(drawn))
    assert len(drawn) == 5
    assert found.drawn(None, 0) == found.drawn(20, 0) == found.files
