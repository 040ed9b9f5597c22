"""Output replaces only files, keeps their modes, and leaves no drafts behind."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnscope.cli.files import checked_file
from attnscope.cli.output import WRITTEN, output_folder, page_path
from attnscope.core import files as drafts
from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically


def special(path: Path, kind: str) -> Path:
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "link to a device":
        path.symlink_to("/dev/null")
    else:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # a private null device
    return path


KINDS = ["folder", "pipe", "socket", "link to a device"]


@pytest.mark.parametrize("kind", [*KINDS, *(["device"] if os.geteuid() == 0 else [])])
def test_only_files_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    try:
        place = special(Path("x.html"), kind)
    except PermissionError:
        pytest.skip(f"no {kind} can be made here")
    before = place.lstat()
    for write in (
        lambda: write_atomically(place, b"content"),
        lambda: checked_file(place, "--chart", (".html",)),
        lambda: page_path(place),
    ):
        with pytest.raises(RefusalError, match=r"x\.html"):
            write()
    assert place.lstat() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_output_folder_with_a_folder_in_place_of_a_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    special(tmp_path / name, kind)
    with pytest.raises(RefusalError, match=name), output_folder(tmp_path):
        pytest.fail("work was begun")


def test_device_as_output_folder_is_refused() -> None:
    with pytest.raises(RefusalError, match="cannot be created"), output_folder(Path("/dev/null")):
        pytest.fail("work was begun")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664, 0o666, 0o400])
def test_a_file_that_is_replaced_keeps_its_modes(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "survey.json"
    path.write_bytes(b"before")
    path.chmod(mode)
    write_atomically(path, b"after")
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_obeys_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "survey.json", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "survey.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "語" * 85, "a.b", "[x]*?.json"])
def test_names_as_long_as_they_may_be(tmp_path: Path, name: str) -> None:
    write_atomically(tmp_path / name, b"content")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def left_behind(path: Path, process: int, host: str | None = None) -> Path:
    draft = path.with_name(f".{path.name}.{host or drafts._host()}-{process}-{'0' * 16}.part")
    draft.write_bytes(b"half")
    return draft


def test_drafts_are_removed_only_if_their_writer_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "survey.json"
    dead = left_behind(path, dead_process())
    living = left_behind(path, os.getppid())
    elsewhere = left_behind(path, 1, host="ffffffff")
    of_another = left_behind(tmp_path / "report.html", dead_process())
    nobody = tmp_path / ".survey.json.notes.part"
    nobody.write_bytes(b"mine")
    write_atomically(path, b"whole")
    assert not dead.exists()
    assert all(one.exists() for one in (living, elsewhere, of_another, nobody))


def test_old_drafts_are_cleared_whoever_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "survey.json"
    old = [
        left_behind(path, os.getppid()),
        left_behind(path, 1, host="ffffffff"),
        tmp_path / f".survey.json.{'0' * 16}.part",
    ]
    old[-1].write_bytes(b"of an earlier version, whose drafts did not say who wrote them")
    for draft in old:
        os.utime(draft, (time.time() - 2 * drafts.ABANDONED,) * 2)
    write_atomically(path, b"whole")
    assert [one.name for one in tmp_path.iterdir()] == ["survey.json"]


def test_own_draft_names_are_recognised(tmp_path: Path) -> None:
    draft = drafts.draft_of(tmp_path / "survey.json")
    draft.write_bytes(b"")
    os.utime(draft, (0, 0))
    drafts.clear_abandoned(tmp_path / "survey.json")
    assert not draft.exists()
