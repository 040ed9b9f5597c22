"""`attnscope timeline`: pages without torch, checkpoints in the order of steps, a live screen
under a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnscope
from attnscope.cli.main import app
from attnscope.commands.timeline.run import from_checkpoints, step_of
from attnscope.commands.watch.run_folder import RunLog
from attnscope.core.errors import RefusalError
from tests.commands.timeline.sample import header, look, write_run

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}


def test_a_run_becomes_a_page_without_torch(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 20)
    write_run(tmp_path / "b", 10)
    program = (
        "import sys; from attnscope.cli.main import app\n"
        "try: app(['timeline', 'a', 'b', '--json'])\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [len(told["looks"]), len(told["beside"][0]["looks"])] == [20, 10]
    assert told["sentences"][0].startswith("a: Entropy collapses in block 1, head 0")
    page = (tmp_path / "a" / "timeline.html").read_text()
    assert "What training did to attention" in page
    assert not (tmp_path / "a" / "timeline.json").exists()  # the record is the run itself


def test_path_of_the_record_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(tmp_path / name, 3)
    both = CliRunner().invoke(app, ["timeline", "a", "b", "--out", "side"])
    assert re.search(r"^Page +side/timeline.html$", both.stdout, re.M)
    assert "Record" not in both.stdout  # each run keeps its record
    one = CliRunner().invoke(app, ["timeline", "a", "--out", "side"])
    assert re.search(r"^Record +a$", one.stdout, re.M)
    assert [path.name for path in (tmp_path / "side").iterdir()] == ["timeline.html"]


def test_twin_and_load_read_the_same(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 5)
    twin = attnscope.timeline(tmp_path / "a")
    twin.save(tmp_path / "timeline.json")
    assert attnscope.load(tmp_path).to_json() == twin.to_json()
    assert attnscope.timeline(tmp_path / "timeline.json").to_json() == twin.to_json()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "There is no run none"),
        (["empty"], "holds neither a run"),
        (["a", "--samples", "4"], "samples: options of a scan"),
        (["a", "checkpoint-5"], "Runs and checkpoints cannot be mixed in one timeline"),
    ],
)
def test_folder_that_is_not_a_run_is_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", 3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "config.json").write_text("{}")
    done = CliRunner().invoke(app, ["timeline", *words])
    assert isinstance(done.exception, RefusalError)
    assert said in done.exception.sentence
    assert not list(tmp_path.rglob("*.html"))


def test_checkpoints_are_scanned_in_the_order_of_their_steps(tmp_path: Path) -> None:
    pocket = Path(attnscope.__file__).parent / "data" / "pocket"
    for step in (1000, 20):
        shutil.copytree(pocket, tmp_path / "out" / f"checkpoint-{step}")
    state = {"global_step": 1000, "log_history": [{"step": 10, "loss": 4.0}, {"step": 1000, "loss": 2.5}]}
    (tmp_path / "out" / "checkpoint-1000" / "trainer_state.json").write_text(json.dumps(state))
    assert step_of(tmp_path / "out" / "checkpoint-20") == 20
    found = attnscope.timeline(tmp_path / "out", samples=1, max_tokens=16, measures="entropy")
    assert found.steps.tolist() == [20, 1000]
    assert [one.loss for one in found.looks] == [None, 2.5]
    entropy = found.series("entropy")
    assert entropy.shape[0] == 2
    assert (entropy[0] == entropy[1]).all()  # the same weights on the same text
    assert "what happened between them is unknown" in found.notes[0]


def test_checkpoints_without_a_known_step_are_refused(tmp_path: Path) -> None:
    for name in ("model", "run-5", "again-5"):
        (tmp_path / name).mkdir()
    with pytest.raises(RefusalError, match=r"The step of .* is unknown"):
        from_checkpoints([tmp_path / "model"])
    with pytest.raises(RefusalError, match="are both at step 5"):
        from_checkpoints([tmp_path / "run-5", tmp_path / "again-5"])


class Terminal:
    """A program under a pseudo-terminal of 80 x 24."""

    def __init__(self, *words: str) -> None:
        self.process, self.number = pty.fork()
        if self.process == 0:
            os.execve(sys.executable, [sys.executable, "-m", "attnscope", *words], {**ENVIRONMENT, "TERM": "xterm"})
        fcntl.ioctl(self.number, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.text = ""

    def until(self, words: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while words not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.text):
            assert time.monotonic() < end, self.text[-2000:]
            ready, _, _ = select.select([self.number], [], [], 0.2)
            if ready:
                self.text += os.read(self.number, 65536).decode(errors="replace")

    def press(self, key: bytes) -> int:
        """Press a key to quit, and return the exit code."""
        os.write(self.number, key)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            ready, _, _ = select.select([self.number], [], [], 0.2)
            if ready:
                try:
                    self.text += os.read(self.number, 65536).decode(errors="replace")
                except OSError:
                    break
        _, status = os.waitpid(self.process, 0)
        return os.waitstatus_to_exitcode(status)


def test_live_follows_a_run_until_q_is_pressed(tmp_path: Path) -> None:
    with RunLog.create(tmp_path / "run", header()) as log:
        log.append(look(0))
        screen = Terminal("timeline", str(tmp_path / "run"), "--live", "--refresh", "0.1")
        screen.until("step 50 ·")
        for number in range(1, 18):
            log.append(look(number))
        screen.until("step 900 ·")
        screen.until("entropy_collapse: 0.4 < 0.5 (block 1, head 0)")
        assert screen.press(b"q") == 0
    assert "\x1b[?1049h" in screen.text  # the alternate screen,
    assert "\x1b[?1049l" in screen.text  # given back


def test_live_without_a_terminal_prints_the_current_state(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 20)
    done = CliRunner().invoke(app, ["timeline", str(tmp_path / "run"), "--live"])
    assert done.exit_code == 0
    assert "step 1,000 · loss" in done.stdout
    assert "q quits" not in done.stdout
    missing = CliRunner().invoke(app, ["timeline", str(tmp_path / "none"), "--live"])
    assert isinstance(missing.exception, RefusalError)
    two = CliRunner().invoke(app, ["timeline", str(tmp_path / "run"), str(tmp_path / "run"), "--live"])
    assert isinstance(two.exception, RefusalError)
