"""Workers that die, refuse, fail or disagree, and a killed driver. No model is needed: the engine runs plain tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnscope.core.errors import RefusalError
from attnscope.engine.crew import Workers, answer
from attnscope.engine.processes import Processes, cores, environment
from tests.engine.toy import Squares


def test_every_task_is_done_once_and_cores_are_divided_among_workers(tmp_path: Path) -> None:
    with Processes(Squares(str(tmp_path)), 2) as crew:
        assert crew.hello in crew.processes
        found = dict(crew.each(range(7)))
        assert answer(crew, 9)[0] == 81
        workers = crew.processes
    assert {task: square for task, (square, _, _) in found.items()} == {n: n * n for n in range(7)}
    assert {threads for _, _, threads in found.values()} == {str(max(1, min(cores() // 2, _set_threads())))}
    assert len(list(tmp_path.glob("done-*"))) == 8
    assert not any(_lives(worker) for worker in workers)


def test_task_of_a_dead_worker_goes_to_another(tmp_path: Path) -> None:
    with Processes(Squares(str(tmp_path), kills=2), 2) as crew:
        found = dict(crew.each(range(5)))
    assert sorted(square for square, _, _ in found.values()) == [0, 1, 4, 9, 16]
    assert len(list(tmp_path.glob("death-*"))) == 1
    assert len(list(tmp_path.glob("done-*"))) == 5


def test_a_task_that_kills_every_worker_is_refused_by_name(tmp_path: Path) -> None:
    with (
        pytest.raises(RefusalError, match=r"Shard 1 failed: 4 workers died while they ran it \(signal 9, SIGKILL\)"),
        Processes(Squares(str(tmp_path), kills=1, times=9), 1) as crew,
    ):
        list(crew.each(range(3)))
    assert len(list(tmp_path.glob("death-*"))) == 4


@pytest.mark.parametrize(
    ("ways", "sentence"),
    [
        ({"refuses": 1}, r"^Shard 1: the disk is full: make room\.$"),
        ({"fails": 1}, r"^Shard 1 failed \(ValueError: seven is not a number\)"),
        ({"unloadable": True}, r"^There is no model 'nothing': check its name\.$"),
        ({"different": True}, r"^Workers disagree about the work"),
    ],
)
def test_errors_in_workers_become_one_sentence(tmp_path: Path, ways: dict[str, int], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence), Processes(Squares(str(tmp_path), **ways), 2) as crew:  # type: ignore[arg-type]
        list(crew.each(range(40)))


def test_workers_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from attnscope.engine.processes import Processes; from tests.engine.toy import Squares\n"
        f"crew = Processes(Squares({str(tmp_path)!r}), 2).__enter__(); crew.hello\n"
        "print(*crew.processes, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as driver:
        assert driver.stdout is not None
        workers = [int(word) for word in driver.stdout.readline().split()]
        driver.send_signal(signal.SIGKILL)
    assert len(workers) == 2
    for _ in range(200):
        if not any(_lives(worker) for worker in workers):
            return
        time.sleep(0.05)
    raise AssertionError("workers outlived their driver")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"workers": 0}, "`workers=` cannot be 0"),
        ({"engine": "rya"}, "Did you mean 'ray'"),
        ({"address": "a:1"}, "add `engine='ray'`"),
        ({"engine": "ray", "gpus_per_worker": -1.0}, "cannot be"),
    ],
)
def test_impossible_workers_are_refused(asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        Workers(**asked)  # type: ignore[arg-type]


def _set_threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "") or cores())


def _lives(process: int) -> bool:
    """Return whether a process is alive. A zombie counts as dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("said", "asked"), [("1", 1), ("3,2", 3), ("many", 10**6), ("", 10**6), ("0", 1)])
def test_workers_obey_omp_num_threads(monkeypatch: pytest.MonkeyPatch, said: str, asked: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert environment(1)["OMP_NUM_THREADS"] == str(min(asked, cores()))


def test_too_many_workers_are_refused_before_any_starts(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match=rf"would only compete for memory: pass .*workers.*{cores()}"):
        Processes(Squares(str(tmp_path)), 1000 * cores())
