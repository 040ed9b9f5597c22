"""Standard streams that are closed, full, or without a reader."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.cli import main
from attnscope.cli import output as streams
from attnscope.commands.view.record import View
from attnscope.core.errors import RefusalError


def through_shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in the shell, with `A` replaced by the command."""
    command = f"{sys.executable} -m attnscope"
    return subprocess.run(
        ["bash", "-c", line.replace("A ", f"{command} ", 1)], capture_output=True, text=True, check=False
    )


def test_closed_output_has_exit_code_141() -> None:
    done = through_shell("A measures | true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (streams.CLOSED_OUTPUT, "")


def test_full_output_is_refused() -> None:
    done = through_shell("A measures --json > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("attnscope: The output cannot be written (No space left on device)")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("closed", ["2>/dev/full", "<&- >&- 2>&-"])
def test_refusal_keeps_its_exit_code_without_standard_error(closed: str) -> None:
    done = through_shell(f"A measures nope {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_work_goes_on_without_standard_error() -> None:
    done = through_shell("A capacity -n 8 -k 2 --budget 0 --json 2>&-")
    assert done.returncode == 0
    assert '"n": 8' in done.stdout


class Full:
    """A stream on a full disk."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_standard_error_ignores_failed_writes_and_is_otherwise_unchanged() -> None:
    stream = streams.ErrorTolerantStream(Full())
    assert stream.write("words") == 5
    stream.flush()
    assert stream.encoding == "utf-8"


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (RefusalError("No: do that."), 2, "attnscope: No: do that.\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, "longer than a file name can be"),
        (PermissionError(errno.EACCES, "Permission denied", "secret"), 2, "'secret' cannot be accessed"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", b"folder"), 2, "'folder' cannot be used (Is a directory)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_uncaught_os_errors_become_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, says: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    assert main._code() == code
    assert says in capsys.readouterr().err


def test_internal_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("something without a file")

    monkeypatch.setattr(main, "app", fail)
    assert main._code() == streams.CRASHED


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (None, 0)])
def test_exit_codes_of_commands_are_kept(monkeypatch: pytest.MonkeyPatch, code: int | None, expected: int) -> None:
    def leave() -> None:
        sys.exit(code)

    monkeypatch.setattr(main, "app", leave)
    assert main._code() == expected


def test_the_code_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "other_hands.md"
    assert str(streams.CLOSED_OUTPUT) in page.read_text("utf-8")


def test_crash_has_its_own_exit_code_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ValueError("optimizer got an empty parameter list")

    monkeypatch.setattr(main, "app", broken)
    assert main._code() == streams.CRASHED == 70
    *traceback, sentence = capsys.readouterr().err.splitlines()
    assert traceback[-1] == "ValueError: optimizer got an empty parameter list"
    assert sentence.startswith("attnscope: This is a defect of attnscope (ValueError)")
    assert "report it" in sentence


def test_text_of_process_substitution_is_read(tmp_path: Path) -> None:
    done = through_shell(f"A view pocket <(printf 'The dog saw the dog') --out {tmp_path}/seen --json")
    assert done.returncode == 0, done.stderr
    assert View.load(tmp_path / "seen" / "view-the-dog-saw-the-dog.json").text == "The dog saw the dog"
