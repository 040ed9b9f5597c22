"""Progress of commands: counted work with its speed, steps, and calls with and without tokens."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from attnscope.cli import progress
from attnscope.cli.progress import showing, times_words
from attnscope.core.progress import silent


class _Clock:
    """A clock that advances by a second with every reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time", _Clock())


def test_counted_work_prints_every_tenth_with_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with showing("sequences") as advance:
        advance("loading", 0, 0)
        for done in range(21):
            advance("scanning", done, 20, 100 * done)
        advance("drawing the report", 0, 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["loading", "scanning 0/20 sequences"]
    assert len(lines) == 13
    assert re.fullmatch(r"scanning 2/20 sequences, [\d,]+ tokens/s, \d+:\d\d left", lines[2])
    assert lines[-2].endswith(", 0:00 left")
    assert lines[-1] == "drawing the report"


def test_speed_excludes_work_done_before_resuming(capsys: pytest.CaptureFixture[str]) -> None:
    with showing("sequences") as advance:
        advance("scanning", 10, 20, 10_000)
        advance("scanning", 12, 20, 10_100)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "scanning 10/20 sequences"
    speed = re.search(r"([\d,]+) tokens/s", second)
    assert speed is not None
    assert float(speed[1].replace(",", "")) <= 100


def test_steps_are_printed_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with showing() as advance:
        for done in range(30):
            advance("searching", done, 30)
        for _ in range(12):
            advance("polishing", 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 5
    assert re.fullmatch(r"searching \d+/30", lines[0])
    assert lines[-1] == "polishing"


def test_silent_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent("searching", 1, 2)
    silent("scanning", 1, 2, 300)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("elapsed", "left", "words"),
    [
        (5.2, 12.0, "0:05 elapsed, 0:12 left"),
        (5.2, None, "0:05 elapsed"),
        (59.6, 3600.0, "1:00 elapsed, 1:00:00 left"),
    ],
)
def test_elapsed_and_remaining_times_are_labelled(elapsed: float, left: float | None, words: str) -> None:
    assert times_words(elapsed, left) == words


@pytest.mark.parametrize("counted", [True, False])
def test_a_bar_of_eighty_columns_cuts_no_label(counted: bool) -> None:
    label = "scanning" if counted else "joint at n = 16384, k = 16, seed 2: width 24 (26 reached), polishing rows"
    columns = progress._count_columns() if counted else progress._step_columns()
    out = StringIO()
    bar = Progress(*columns, console=Console(file=out, width=80, color_system=None, force_terminal=True), expand=True)
    words: dict[str, Any] = {"count": "3/6", "speed": "", "left": None}
    if counted:
        words = {"count": "1200/6400 sequences", "speed": "123,456 tokens/s", "left": 4000.0}
    bar.add_task(label, total=10, completed=3, **words)
    bar.console.print(bar.get_renderable())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    lines = shown.strip().splitlines()
    assert max(map(len, lines)) <= 80
    assert "elapsed, 1:06:40 left" in shown if counted else "0:00 elapsed" in shown
    assert words["count"] in shown
    assert set(label.split()) <= set(shown.split())  # wrapped to two lines
    assert "…" not in shown
