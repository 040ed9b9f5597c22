"""Commands as a person types them: what they print, write and return."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from attnscope import __version__
from tests.command import attnscope
from tests.interrupting import as_from_a_terminal
from tests.specimens import TEXT, save_specimen

SMALL = ("--samples", "4", "--max-tokens", "24", "--batch-size", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def scanned(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished scan that the other commands read."""
    out = tmp_path_factory.mktemp("out") / "scan"
    done = attnscope("scan", model, *SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stdout
    return out


def test_scan_writes_a_survey_and_a_report_and_nothing_else(scanned: Path) -> None:
    assert sorted(p.name for p in scanned.iterdir()) == ["report.html", "survey.json"]
    survey = json.loads((scanned / "survey.json").read_text())
    assert survey["provenance"]["corpus"]["sequences"] == 4
    assert (scanned / "report.html").read_text().lower().startswith("<!doctype html>")


def test_json_is_all_that_standard_output_holds(model: Path, tmp_path: Path) -> None:
    done = attnscope("scan", model, *SMALL, "--out", tmp_path / "o", "--json")
    said = json.loads(done.stdout)
    assert Path(said["report"]).exists()
    assert {f["severity"] for f in said["findings"]} <= {"note", "to_know", "wrong"}
    assert "scanning 4/4 sequences" in done.stderr


def test_standard_input_is_a_corpus(model: Path, tmp_path: Path) -> None:
    done = attnscope("scan", model, "-", *SMALL, "--out", tmp_path / "o", stdin=TEXT)
    assert done.returncode == 0, done.stderr


def test_the_default_folder_is_named_after_the_model(model: Path, tmp_path: Path) -> None:
    done = attnscope("scan", model, *SMALL, "--measures", "entropy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"attnscope-{model.name}" / "survey.json").exists()


def test_random_weights_from_a_bare_config(model: Path, tmp_path: Path) -> None:
    done = attnscope("scan", model / "config.json", "--random-init", *SMALL, "--out", tmp_path / "o", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["provenance"]["model"]["weights"] == "random"


def test_report_draws_again_without_torch(scanned: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from attnscope.cli.main import app\n"
        f"app(['report', {str(scanned)!r}, '--out', {str(tmp_path / 'r.html')!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_report_writes_charts_on_request(scanned: Path, tmp_path: Path) -> None:
    done = attnscope("report", scanned, "--out", tmp_path / "r.html", "--charts", tmp_path / "charts")
    assert done.returncode == 0, done.stderr
    names = {p.suffix for p in (tmp_path / "charts").iterdir()}
    assert {".png", ".svg", ".json"} <= names


def test_compare_needs_no_torch_and_says_what_differs(scanned: Path, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert attnscope("scan", model, "--random-init", "--seed", "1", *SMALL, "--out", other).returncode == 0
    program = (
        "import sys; from attnscope.cli.main import app\n"
        f"app(['compare', {str(scanned)!r}, {str(other)!r}, '--out', {str(tmp_path / 'c.html')!r}],"
        " standalone_mode=False)\nassert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(random weights, seed 1)" in done.stdout
    assert "in block 1, head" in done.stdout
    assert (tmp_path / "c.html").exists()
    as_json = attnscope("compare", scanned, other, "--json")
    assert "entropy" in {change["measure"] for change in json.loads(as_json.stdout)["changes"]}


def test_help_imports_no_torch_and_names_every_command() -> None:
    program = (
        "import sys; from attnscope.cli.main import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'altair', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("scan", "report", "compare", "measures"))


def test_measures_lists_the_catalog_and_one_card() -> None:
    assert "head_contribution" in attnscope("measures").stdout
    assert "arXiv" in attnscope("measures", "entropy").stdout
    cards = json.loads(attnscope("measures", "--json").stdout)
    assert {"entropy", "spike", "qk_spectrum"} <= {card["name"] for card in cards}


def test_fail_on_exits_with_1(model: Path, tmp_path: Path) -> None:
    """Exit with 1 for any finding, with a threshold that every model exceeds."""
    gate = ("--threshold", "sink_mass=0.0", "--fail-on", "note")
    assert attnscope("scan", model, *SMALL, *gate, "--out", tmp_path / "a").returncode == 1
    assert (tmp_path / "a" / "report.html").exists()


def test_version() -> None:
    assert attnscope("--version").stdout.strip() == __version__


def test_closed_pipe_is_not_an_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "attnscope.cli.main", "measures", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        assert b"Traceback" not in running.stderr.read()


def test_compare_of_a_survey_with_itself_says_that_nothing_changed(scanned: Path) -> None:
    done = attnscope("compare", scanned, scanned)
    assert done.returncode == 0, done.stderr
    assert "Nothing changed: " in done.stdout
    assert "+0.0" not in done.stdout
    said = json.loads(attnscope("compare", scanned, scanned, "--json").stdout)
    assert said["changes"] == []
    assert said["unchanged"] > 100


def on_a_terminal(*words: str | Path, press_at: bytes | None = None) -> tuple[int, bytes]:
    """Run a command in a pseudo-terminal; press Ctrl-C when `press_at` appears."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    seen = b""
    with subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *map(str, words)],
        stdin=follower,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        start_new_session=True,
        preexec_fn=as_from_a_terminal,  # noqa: PLW1509  one thread, and nothing else than signals is set
        env={**os.environ, "TERM": "xterm", "HF_HUB_OFFLINE": "1"},
    ) as run:
        os.close(follower)
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the process has closed its end
                break
            if not part:
                break
            seen += part
            if press_at is not None and press_at in seen:
                os.write(leader, b"\x03")
                press_at = None
    os.close(leader)
    return run.returncode, seen


# It must be the controlling terminal of the process, or Ctrl-C would not reach it.
OWN_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); sys.argv[0] = 'attnscope'\n"
    "from attnscope.cli.main import run; run()"
)


def screen(output: bytes) -> list[str]:
    """Return the lines on the screen, after carriage returns, newlines, cursor movements and erased lines."""
    lines, row, column = [""], 0, 0
    for move, text in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])|([^\x1b\r\n]+)", output.decode()):
        if text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
        elif move == "\r":
            column = 0
        elif move == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif move.endswith("A"):
            row = max(0, row - int(move[2:-1] or 1))
        elif move.endswith("K"):
            lines[row] = "" if move[2:-1] == "2" else lines[row][:column]
    return [line.rstrip() for line in lines]


def test_a_terminal_sees_a_bar_with_speed_and_time_left(model: Path, tmp_path: Path) -> None:
    """The bar shows the sequences and the tokens per second."""
    words = ("scan", model, "--samples", "40", "--max-tokens", "40", "--batch-size", "1", "--out", tmp_path / "o")
    code, seen = on_a_terminal(*words)
    assert code == 0, seen.decode()
    assert b"Traceback" not in seen
    assert b"/40 sequences" in seen
    assert b"tokens/s" in seen
    assert re.search(rb"0:\d\d elapsed, 0:\d\d left", seen)


def test_ctrl_c_while_loading_speaks_on_a_line_of_its_own(model: Path, tmp_path: Path) -> None:
    code, seen = on_a_terminal("scan", model, *SMALL, "--out", tmp_path / "o", press_at=b"loading")
    assert code == 130, seen.decode()
    assert "attnscope: interrupted; nothing was done yet." in screen(seen), seen
    assert not (tmp_path / "o").exists()
