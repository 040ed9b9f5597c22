"""One listener for every command: counted work with its speed, steps now and then, calls with and without tokens."""

from __future__ import annotations

import re

import pytest

from attnscope.cli import progress
from attnscope.cli.progress import showing
from attnscope.core.progress import silent


class _Clock:
    """Time goes on by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time", _Clock())


def test_counted_work_says_every_tenth_with_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with showing("sequences") as advance:
        advance("loading", 0, 0)
        for done in range(21):
            advance("scanning", done, 20, 100 * done)
        advance("drawing the report", 0, 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["loading", "scanning 0/20 sequences"]
    assert len(lines) == 13
    assert re.fullmatch(r"scanning 2/20 sequences, [\d,]+ tokens/s, \d+ s left", lines[2])
    assert lines[-2].endswith(", 0 s left")
    assert lines[-1] == "drawing the report"


def test_what_a_resumed_scan_had_done_is_not_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with showing("sequences") as advance:
        advance("scanning", 10, 20, 10_000)
        advance("scanning", 12, 20, 10_100)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "scanning 10/20 sequences"
    speed = re.search(r"([\d,]+) tokens/s", second)
    assert speed is not None
    assert float(speed[1].replace(",", "")) <= 100


def test_steps_say_something_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with showing() as advance:
        for done in range(30):
            advance("searching", done, 30)
        for _ in range(12):
            advance("polishing", 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 5
    assert re.fullmatch(r"searching \d+/30", lines[0])
    assert lines[-1] == "polishing"


def test_nobody_need_listen(capsys: pytest.CaptureFixture[str]) -> None:
    silent("searching", 1, 2)
    silent("scanning", 1, 2, 300)
    assert capsys.readouterr() == ("", "")
