"""A run folder holds whole lines only, also after a kill or on a full disk; it has one writer and no repeated steps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnscope.commands.timeline.read import RunReader, read_run
from attnscope.commands.watch.run_folder import LOCK, RunLog, RunLogStopped
from attnscope.core.errors import RefusalError
from attnscope.core.locks import FolderLock, held_by_number
from tests.commands.timeline.sample import header, look, looks, write_run

ROOT = Path(__file__).parents[3]


def _steps(folder: Path) -> list[int]:
    return read_run(folder).steps.tolist()


def test_what_is_appended_is_read_back_to_six_figures(tmp_path: Path) -> None:
    written = looks(5)
    with RunLog.create(tmp_path / "run", header()) as log:
        for one in written:
            log.append(one)
    read = read_run(tmp_path / "run")
    assert read.header == header()
    assert [one.step for one in read.looks] == [one.step for one in written]
    for mine, theirs in zip(read.looks, written, strict=True):
        assert [v.key for v in mine.values] == [v.key for v in theirs.values]
        for a, b in zip(mine.values, theirs.values, strict=True):
            # six figures: half a unit in the sixth is at most 5e-6 of the number
            np.testing.assert_allclose(a.numbers, b.numbers, rtol=5e-6, atol=0)
        assert mine.alarms == theirs.alarms
        assert mine.tokens == theirs.tokens
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["looks.jsonl", "run.json"]


def test_it_is_readable_while_it_is_written(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path, header())
    reader = RunReader(tmp_path)
    assert reader.more() == ()
    for number in range(3):
        log.append(look(number))
        assert [one.step for one in reader.more()] == [50 * (number + 1)]
        assert _steps(tmp_path) == [50 * (n + 1) for n in range(number + 1)]
    log.close()
    assert len(reader.timeline.looks) == 3


def test_a_half_written_last_line_is_left_out_and_read_when_it_is_whole(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    file = tmp_path / "run" / "looks.jsonl"
    whole = file.read_bytes()
    line = look(3).line()
    for cut in (1, len(line) // 2, len(line) - 2):
        file.write_bytes(whole + line[:cut])
        reader = RunReader(tmp_path / "run")
        assert [one.step for one in reader.timeline.looks] == [50, 100, 150]
        assert reader.timeline.notes == ("The last line of looks.jsonl is unfinished: one look is left out.",)
        assert reader.more() == ()
        file.write_bytes(whole + line)
        assert [one.step for one in reader.more()] == [200]
        assert not reader.timeline.notes


def test_a_damaged_line_loses_one_look_and_is_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 4)
    file = tmp_path / "run" / "looks.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = b"\0\0\0\n"
    lines.append(lines[0])  # a step that was there already
    file.write_bytes(b"".join(lines))
    read = read_run(tmp_path / "run")
    assert read.steps.tolist() == [50, 150, 200]
    assert read.notes == ("2 lines of looks.jsonl could not be read and are skipped: 2, 5.",)


WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
from attnscope.commands.watch.run_folder import RunLog
from tests.commands.timeline.sample import header, look
log = RunLog.create(Path(sys.argv[1]), header(12, 100))
one = look(0, layers=12, heads=100)
print("ready", flush=True)
for step in range(1, 10**9):
    log.append(replace(one, step=step))
"""


def _writer(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that appends looks as fast as it can."""
    started = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    return started


def test_kill_9_in_the_middle_of_a_write_leaves_a_readable_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = _writer(folder)
    try:
        file = folder / "looks.jsonl"
        deadline = time.monotonic() + 30
        while file.stat().st_size < 200_000:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        steps = _steps(folder)  # while it is written
        assert steps == list(range(1, len(steps) + 1))
        with pytest.raises(RefusalError, match=f"in use by process {writer.pid}"):
            RunLog.resume(folder, header(12, 100), step=0)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    steps = _steps(folder)
    assert len(steps) > 3
    assert steps == list(range(1, len(steps) + 1))
    # A kill in the middle of a write leaves half a line. The next writer cuts it off.
    with file.open("ab") as stream:
        stream.write(look(0).line()[:100])
    assert _steps(folder) == steps
    with RunLog.resume(folder, header(12, 100), step=steps[-2]) as log:
        log.append(replace(look(0), step=steps[-1]))
    assert _steps(folder) == steps
    assert all(json.loads(line) for line in file.read_bytes().splitlines())


def test_a_folder_in_use_is_refused_and_free_again_after_close(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path, header())
    with pytest.raises(RefusalError, match=f"in use by process {os.getpid()}.*give another folder"):
        RunLog.resume(tmp_path, header(), step=0)
    child = os.fork()
    if child == 0:  # a loader's worker that outlives its parent must not hold the folder
        time.sleep(20)
        os._exit(0)
    try:
        log.close()
        log.close()
        RunLog.resume(tmp_path, header(), step=0).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_without_locks_of_the_system_the_number_in_the_file_decides(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, LOCK)
    assert held_by_number(lock.path)
    lock.release()
    assert not held_by_number(lock.path)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    lock.path.write_text(f"{child} {os.uname().nodename}\n")
    assert not held_by_number(lock.path)
    lock.path.write_text("1 another-machine\n")
    assert held_by_number(lock.path)
    long_ago = time.time() - 7200
    os.utime(lock.path, (long_ago, long_ago))
    assert not held_by_number(lock.path)


def test_a_run_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    write_run(tmp_path, 3)
    with pytest.raises(RefusalError, match=r"already holds a run \(3 looks\): give another folder, or resume"):
        RunLog.create(tmp_path, header())
    assert _steps(tmp_path) == [50, 100, 150]


def test_resuming_drops_later_looks_and_never_doubles_a_step(tmp_path: Path) -> None:
    write_run(tmp_path, 6)
    reader = RunReader(tmp_path)
    with RunLog.resume(tmp_path, header(every=25), step=170) as log:
        assert [one.step for one in log.kept] == [50, 100, 150]
        with pytest.raises(ValueError, match="step 150 cannot follow one at step 150"):
            log.append(look(2))
        for number in (3, 4, 5, 6):
            log.append(look(number, seed=1))
    read = read_run(tmp_path)
    assert read.steps.tolist() == [50, 100, 150, 200, 250, 300, 350]
    assert read.header.resumed == (170,)
    assert read.header.settings["every"] == 25
    # A reader that had read some of the dropped lines starts again.
    assert [one.step for one in reader.more()] == read.steps.tolist()
    assert reader.more() == ()


def test_resuming_before_the_first_look_and_where_there_is_no_run(tmp_path: Path) -> None:
    with RunLog.resume(tmp_path / "new", header(), step=500) as log:
        assert log.kept == ()
        log.append(look(10))
    with RunLog.resume(tmp_path / "new", header(), step=0) as log:
        log.append(look(0))
    assert _steps(tmp_path / "new") == [50]


def test_a_header_of_another_model_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    write_run(tmp_path, 3)
    with pytest.raises(RefusalError, match=r"is a run of another model .*give each model its own folder"):
        RunLog.resume(tmp_path, header(layers=4, model="another"), step=0)
    assert _steps(tmp_path) == [50, 100, 150]
    RunLog.resume(tmp_path, header(), step=150).close()  # and the lock is free


def test_a_full_disk_stops_the_log_and_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog.create(tmp_path, header())
    log.append(look(0))
    real = os.write

    def full(descriptor: int, content: bytes) -> int:
        """Write a few bytes and then fail, as on a nearly full disk."""
        if len(content) > 50 and not taken:
            taken.append(1)
            return real(descriptor, content[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    taken: list[int] = []
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunLogStopped, match=r"No space left on device\): the record ends at step 50; make room"):
        log.append(look(1))
    monkeypatch.undo()
    assert taken
    with pytest.raises(RunLogStopped, match="No space left"):
        log.append(look(2))
    assert _steps(tmp_path) == [50]
    assert (tmp_path / "looks.jsonl").read_bytes().endswith(b"\n")
    with RunLog.resume(tmp_path, header(), step=50) as again:
        again.append(look(1))
    assert _steps(tmp_path) == [50, 100]


def test_a_full_device_is_reported_in_a_sentence(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    log = RunLog.create(tmp_path, header())
    (tmp_path / "looks.jsonl").unlink()
    os.dup2(os.open("/dev/full", os.O_WRONLY), log._descriptor)
    with pytest.raises(RunLogStopped, match="could not be written"):
        log.append(look(0))


@pytest.mark.parametrize("content", ["", "{}", '{"format": "attnscope-run", "version": 9}', "[]"])
def test_what_is_no_run_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RefusalError, match=r"run\.json"):
        read_run(tmp_path)
    with pytest.raises(RefusalError, match="There is no run folder"):
        read_run(tmp_path / "none")
    with contextlib.suppress(RefusalError):
        RunLog.resume(tmp_path, header(), step=0)
    assert (tmp_path / "run.json").read_text() == content
