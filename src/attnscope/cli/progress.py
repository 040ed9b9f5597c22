"""Show progress on standard error: a bar on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from attnscope.core.progress import Listener
from attnscope.core.words import clean

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_LINES = 10  # number of plain lines for work that counts one thing throughout
_SHORT_BAR = 10
_EVERY = 10.0  # seconds between plain lines about steps: a search reports hundreds of times a second


@contextmanager
def showing(counted: str = "") -> Iterator[Listener]:
    """Yield `advance(stage, done, total, tokens)`; `tokens` is optional, and a total of 0 is unknown.

    `counted` names what is counted ("sequences") if all stages count the same thing: then speed and the time left are
    shown. Without it, every stage counts its own steps.
    """
    if not sys.stderr.isatty():
        yield _plain_count(counted) if counted else _plain_steps()
        return
    from rich.console import Console
    from rich.progress import Progress

    columns = _count_columns() if counted else _step_columns()
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("loading" if counted else "starting", total=None, count="", speed="", left=None)
        pace = _Pace()

        def advance(stage: str, done: int, total: int, tokens: int | None = None) -> None:
            speed = pace.speed(stage, done, tokens)
            left = pace.seconds_left(done, total) if counted and total else None
            count = _count(done, total, counted) if total else ""
            bar.update(
                task, description=clean(stage), completed=done, total=total or None, count=count, speed=speed, left=left
            )

        yield advance


def _count_columns() -> tuple[ProgressColumn, ...]:
    from rich.progress import BarColumn, TextColumn
    from rich.table import Column

    return (
        TextColumn("{task.description}", style="bold", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn("{task.fields[count]}", markup=False, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[speed]}", markup=False, table_column=Column(no_wrap=True)),
        _times(),
    )


def _step_columns() -> tuple[ProgressColumn, ...]:
    """Return columns that leave the remaining width to the labels of steps, which may be long."""
    from rich.progress import BarColumn, TextColumn
    from rich.table import Column

    return (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, overflow="fold")),
        BarColumn(bar_width=_SHORT_BAR, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[count]}", markup=False, table_column=Column(no_wrap=True)),
        _times(),
    )


def _times() -> ProgressColumn:
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Times(ProgressColumn):
        """Show `0:05 elapsed, 0:12 left`, or only the first part if the time left is unknown."""

        def render(self, task: Task) -> Text:
            return Text(times_words(task.elapsed or 0.0, task.fields["left"]))

    return Times(table_column=Column(no_wrap=True))


def times_words(elapsed: float, left: float | None) -> str:
    return f"{_clock(elapsed)} elapsed" + ("" if left is None else f", {_clock(left)} left")


def _clock(seconds: float) -> str:
    """Return seconds as `0:05`, `12:00` or `3:20:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class _Pace:
    """The speed of a stage, without work that was done before it began (by a resumed scan)."""

    stage: str = ""
    start: float = 0.0
    done: int = 0
    tokens: int = 0

    def speed(self, stage: str, done: int, tokens: int | None) -> str:
        """Return the speed in words, or nothing before the first tokens."""
        read = tokens or 0
        if stage != self.stage:
            self.stage, self.start, self.done, self.tokens = stage, time.monotonic(), done, read
        new = read - self.tokens
        return f"{new / (time.monotonic() - self.start):,.0f} tokens/s" if new > 0 else ""

    def seconds_left(self, done: int, total: int) -> float | None:
        """Return the seconds left, or None before the first step of this stage."""
        new = done - self.done
        return (time.monotonic() - self.start) * (total - done) / new if new > 0 else None


def _plain_count(counted: str) -> Listener:
    printed: set[tuple[str, int]] = set()
    pace = _Pace()

    def advance(stage: str, done: int, total: int, tokens: int | None = None) -> None:
        speed = pace.speed(stage, done, tokens)
        tenth = done * _LINES // total if total else 0
        if (stage, tenth) in printed:
            return
        printed.add((stage, tenth))
        line = f"{stage} {_count(done, total, counted)}" if total else stage
        left = pace.seconds_left(done, total)
        if speed and left is not None:
            line += f", {speed}, {_clock(left)} left"
        typer.echo(clean(line), err=True)

    return advance


def _plain_steps() -> Listener:
    last = time.monotonic()

    def advance(stage: str, done: int, total: int, tokens: int | None = None) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            typer.echo(clean(f"{stage} {_count(done, total)}" if total else stage), err=True)

    return advance


def _count(done: int, total: int, counted: str = "") -> str:
    return f"{done}/{total} {counted}".rstrip()
