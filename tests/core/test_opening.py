"""Files, pipes and devices that a user names."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from attnscope.cli.files import text_or_file
from attnscope.core import opening
from attnscope.core.errors import RefusalError
from attnscope.core.files import read_all, read_document
from attnscope.core.opening import opened
from attnscope.data.prompts import prompts
from attnscope.data.read import read


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PATIENCE", 0.1)


def writing(path: Path, *pieces: bytes, pause: float = 0.0) -> threading.Thread:
    """Write to a pipe from another thread, with a pause before every piece."""

    def write() -> None:
        with path.open("wb", buffering=0) as stream:
            for piece in pieces:
                time.sleep(pause)
                stream.write(piece)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_pipe_with_slow_writer_is_read_whole(pipe: Path, pause: float) -> None:
    thread = writing(pipe, b"The dog ", b"saw " * 40_000, b"the dog", pause=pause)
    with opened(pipe) as stream:
        content = read_all(stream, "the pipe")
    thread.join()
    assert content == b"The dog " + b"saw " * 40_000 + b"the dog"


def test_text_of_command_line_is_read_from_pipe(pipe: Path) -> None:
    thread = writing(pipe, b"The dog saw the dog")
    assert text_or_file(str(pipe)) == "The dog saw the dog"
    thread.join()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("reader", [text_or_file, read, prompts, lambda name: read_document(Path(name))])
def test_pipe_without_writer_is_refused_after_patience(pipe: Path, reader: object) -> None:
    with pytest.raises(RefusalError, match=r"Nobody wrote to the pipe .* give a file"):
        reader(str(pipe))  # type: ignore[operator]


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
@pytest.mark.parametrize("reader", [text_or_file, read, prompts, lambda name: read_document(Path(name))])
def test_devices_are_refused(device: str, reader: object) -> None:
    with pytest.raises(RefusalError, match="is a device"):
        reader(device)  # type: ignore[operator]


def test_link_to_itself_is_no_text(tmp_path: Path) -> None:
    link = tmp_path / "loop"
    link.symlink_to(link)
    with pytest.raises(RefusalError, match="leads back to itself"):
        text_or_file(str(link))


def test_link_to_nothing_is_no_text(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "missing")
    with pytest.raises(RefusalError, match="There is no file"):
        text_or_file(str(link))


@pytest.mark.parametrize("text", ["a/b or c", "The dog", "etc", "What is /dev/null for?"])
def test_texts_that_name_no_file_stay_texts(text: str) -> None:
    assert text_or_file(text) == text
