"""Parts are saved atomically, read back equal, and refused if they belong to another plan."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from attnscope.core.errors import RefusalError
from attnscope.core.progress import stoppable
from attnscope.papers.checkpoints import SavedSession
from tests.interrupting import hearing_signals


def session(folder: Path | None, resume: bool = False, **plan: object) -> SavedSession:
    made = SavedSession(folder, {"experiment": "x", **plan})
    made.open(resume)
    return made


def never(*_: object) -> None:
    raise AssertionError("this part was finished before")


def test_finished_part_is_read_back_not_recomputed(tmp_path: Path) -> None:
    first = session(tmp_path).part("a b/c", lambda: {"x": (0.1, float("nan")), "n": 3})
    assert first == {"x": [0.1, None], "n": 3}
    assert session(tmp_path, resume=True).part("a b/c", never) == first
    for file in tmp_path.rglob("*.json"):
        json.loads(file.read_text(), parse_constant=never)


def test_seconds_add_up_over_resumed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 17.5, 100.0, 102.0])
    monkeypatch.setattr("attnscope.papers.checkpoints.time.monotonic", lambda: next(clock))
    first = session(tmp_path)
    first.part("a", lambda: 1)
    assert first.seconds == 7.5
    second = session(tmp_path, resume=True)
    second.part("a", never)
    second.part("b", lambda: 2)
    assert second.seconds == 9.5


def test_new_run_discards_the_old_checkpoint(tmp_path: Path) -> None:
    session(tmp_path).part("a", lambda: 1)
    assert session(tmp_path).part("a", lambda: 2) == 2


def test_folder_of_something_else_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "weights.bin").write_bytes(b"precious")
    with pytest.raises(RefusalError, match="not of an experiment"):
        session(tmp_path)
    assert (tmp_path / "checkpoint" / "weights.bin").read_bytes() == b"precious"


def test_another_plan_is_refused(tmp_path: Path) -> None:
    session(tmp_path, seeds=(0, 1)).part("a", lambda: 1)
    with pytest.raises(RefusalError, match="other settings"):
        session(tmp_path, resume=True, seeds=(0, 1, 2))
    assert session(tmp_path, resume=True, seeds=(0, 1)).part("a", never) == 1


def test_resume_without_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="nothing to resume"):
        session(tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_damaged_parts_are_refused(tmp_path: Path) -> None:
    session(tmp_path).part("a", lambda: 1)
    (tmp_path / "checkpoint" / "a.json").write_text('{"ans')
    with pytest.raises(RefusalError, match="begin anew"):
        session(tmp_path, resume=True).part("a", never)


@pytest.mark.parametrize("content", ["[]", "null", "5", '"x"', "[[]]", '{"answer": NaN}'])
def test_invalid_plan_is_refused(tmp_path: Path, content: str) -> None:
    session(tmp_path).part("a", lambda: 1)
    (tmp_path / "checkpoint" / "plan.json").write_text(content)
    with pytest.raises(RefusalError, match="begin anew"):
        session(tmp_path, resume=True)


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "null", "5", "{}", '{"answer": {"x": 2}}', '{"answer": {"x": 1}, "seconds": 1.0}'),
        '{"answer": {"x": 1}, "seconds": "long", "sha256": "SEAL"}',
        '{"answer": {"x": 2}, "seconds": 1.0, "sha256": "SEAL"}',
        '{"answer": [], "seconds": 1.0, "sha256": "SEAL"}',
    ],
)
def test_changed_part_is_refused(tmp_path: Path, content: str) -> None:
    session(tmp_path).part("a", lambda: {"x": 1})
    path = tmp_path / "checkpoint" / "a.json"
    seal = json.loads(path.read_text())["sha256"]
    path.write_text(content.replace("SEAL", seal))
    with pytest.raises(RefusalError, match="leave out `resume=` to begin anew"):
        session(tmp_path, resume=True).part("a", never)


def test_training_state_is_never_taken_for_a_finished_part(tmp_path: Path) -> None:
    one = session(tmp_path)
    place = one.state_path("a")
    assert place is not None
    place.with_name(place.name + ".json").write_text("{}")
    assert one.part("a", lambda: 5) == 5


def test_without_a_folder_nothing_is_saved_and_numbers_are_equal(tmp_path: Path) -> None:
    bare = session(None)
    assert bare.state_path("a") is None
    assert (
        bare.part("a", lambda: {1: (2, 3.5)}) == session(tmp_path).part("a", lambda: {1: (2, 3.5)}) == {"1": [2, 3.5]}
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_first_signal_waits_for_the_next_step_second_stops_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = session(None)
    monkeypatch.setattr("attnscope.core.progress.SAME_STOP_SECONDS", 0.0)
    with hearing_signals(), stoppable():
        before = signal.getsignal(number)
        with one.interruptible():
            os.kill(os.getpid(), number)
            with pytest.raises(KeyboardInterrupt):
                one.advance("work", 1, 2)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is before
