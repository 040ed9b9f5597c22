"""Ctrl-C and SIGTERM, sent to real processes: finished work is kept, named, and resumed to the same numbers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command import attnscope, offline
from tests.interrupting import as_a_background_job, as_from_a_terminal
from tests.specimens import save_specimen

SCAN = ("--samples", "60", "--max-tokens", "40", "--batch-size", "1")
PLAIN = "from attnscope.cli.main import run; run()"
# Writing a file takes longer than the time within which two signals count as one.
SLOW_DISK = (
    """
import os, sys, time
honest = os.fsync
def slow(file):
    print("writing", file=sys.stderr, flush=True)
    time.sleep(2.5)
    honest(file)
os.fsync = slow
"""
    + PLAIN
)


@dataclass(frozen=True)
class Stop:
    """Signals to send, each after a line that begins with given words, and the expected outcome."""

    sends: list[tuple[str, float, int]]  # the line to wait for (or ""), seconds after it, the signal
    code: int
    started: Callable[[], None] = as_from_a_terminal
    program: str = PLAIN


STOPS = {
    "Ctrl-C": Stop([("scanning 6/60", 0, signal.SIGINT)], 130),
    "two of them 50 ms apart": Stop([("scanning 6/60", 0, signal.SIGINT), ("", 0.05, signal.SIGINT)], 130),
    "SIGTERM twice where Ctrl-C is ignored": Stop(
        [("scanning 6/60", 0, signal.SIGINT), ("scanning 12/60", 0, signal.SIGTERM), ("", 0.05, signal.SIGTERM)],
        143,
        as_a_background_job,
    ),
    "more of both while the work is saved": Stop(
        [
            ("scanning 6/60", 0, signal.SIGTERM),
            ("writing", 0.05, signal.SIGTERM),
            ("", 1.5, signal.SIGINT),
        ],
        143,
        program=SLOW_DISK,
    ),
}


def stopped(stop: Stop, words: list[str]) -> tuple[int, str]:
    """Run a command and send it the signals; return its exit code and standard error."""
    said = ""
    with subprocess.Popen(
        [sys.executable, "-c", stop.program, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=offline(),
        preexec_fn=stop.started,  # noqa: PLW1509  one thread, and nothing else than signals is set
    ) as running:
        assert running.stderr is not None
        for line, seconds, number in stop.sends:
            while line:
                said += (new := running.stderr.readline())
                assert new, said  # it ended before it printed that line
                if new.startswith(line):
                    break
            time.sleep(seconds)
            running.send_signal(number)
        said += running.stderr.read()
    return running.returncode, said


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted scan."""
    out = tmp_path_factory.mktemp("whole")
    done = attnscope("scan", model, *SCAN, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize(
    "name", [name if name == "Ctrl-C" else pytest.param(name, marks=pytest.mark.thorough) for name in STOPS]
)
def test_interrupted_scan_resumes_to_the_same_survey(name: str, model: Path, whole: Path, tmp_path: Path) -> None:
    stop, out = STOPS[name], tmp_path / "broken"
    words = ["scan", str(model), *SCAN, "--out", str(out)]
    code, said = stopped(stop, words)
    assert code == stop.code, said
    assert said.splitlines()[-1] == (
        "attnscope: interrupted; finished shards are kept: run the same command with --resume."
    )
    assert "Traceback" not in said
    assert [p.name for p in out.iterdir()] == ["survey.partial.json"]
    kept = json.loads((out / "survey.partial.json").read_text())["provenance"]["corpus"]["sequences"]
    assert 6 <= kept < 60
    done = attnscope(*words, "--resume")
    assert done.returncode == 0, done.stderr
    a, b = (json.loads((folder / "survey.json").read_text()) for folder in (whole, out))
    assert a["cells"] == b["cells"]
    assert not (out / "survey.partial.json").exists()


REPRODUCE = (
    """
import sys, time
sys.path.insert(0, {tests!r})
from attnscope.papers import cards, run as driver
from attnscope.commands.treat import train
from tests.papers.stand_in import stand_in
driver.experiments = lambda: {{"stand_in": stand_in}}
cards.cards = lambda: {{"stand_in": stand_in.card}}
honest = train._step_seed
def slow(seed, step):  # a step that a signal can arrive in
    if (seed, step) == (1, 3) and {slow}:
        print("in step 3 of seed 1", file=sys.stderr, flush=True)
        time.sleep(0.5)
    return honest(seed, step)
train._step_seed = slow
"""
    + PLAIN
)


@pytest.mark.thorough
def test_experiment_stops_on_sigterm_and_resumes(tmp_path: Path) -> None:
    """After two signals 50 ms apart the step is finished and the training saved, and the resumed run gives equal
    numbers."""
    tests = str(Path(__file__).parents[2])
    sends: list[tuple[str, float, int]] = [("in step 3", 0.05, signal.SIGTERM), ("", 0.05, signal.SIGTERM)]
    stop = Stop(sends, 143, as_a_background_job, REPRODUCE.format(tests=tests, slow=True))
    words = ["reproduce", "stand_in", "--out", str(tmp_path / "o"), "--json"]
    code, said = stopped(stop, words)
    assert code == 143, said
    assert "attnscope: interrupted; finished work is kept in" in said.splitlines()[-1]
    assert "--resume" in said.splitlines()[-1]
    checkpoint = tmp_path / "o" / "checkpoint"
    assert (checkpoint / "part-0.json").exists()
    assert (checkpoint / "part-1-state.safetensors").exists()
    measured = []
    for words in (["--out", str(tmp_path / "o"), "--resume"], ["--out", str(tmp_path / "whole")]):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                REPRODUCE.format(tests=tests, slow=False),
                "reproduce",
                "stand_in",
                *words,
                "--json",
            ],
            capture_output=True,
            text=True,
            env=offline(),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        measured.append(json.loads(done.stdout)["measured"])
    assert measured[0] == measured[1]
