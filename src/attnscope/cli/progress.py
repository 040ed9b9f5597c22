"""Progress on standard error: a bar with tokens per second and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer

Report = Callable[[str, int, int, int], None]
_LINES = 10  # plain output says where it is about this many times


@contextmanager
def reporting() -> Iterator[Report]:
    """Yields `report(stage, done, total, tokens)`; sequences done of total, and real tokens so far."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None, count="", speed="")
        pace = _Pace()

        def report(stage: str, done: int, total: int, tokens: int) -> None:
            speed = pace.speed(stage, done, tokens)
            count = f"{done}/{total} sequences" if total else ""
            bar.update(task, description=stage, completed=done, total=total or None, count=count, speed=speed)

        yield report


@dataclass
class _Pace:
    """How fast this run is going: what a resumed scan had done before does not count."""

    start: float = 0.0
    sequences: int = -1
    tokens: int = 0

    def speed(self, stage: str, done: int, tokens: int) -> str:
        if stage == "scanning" and self.sequences < 0:
            self.start, self.sequences, self.tokens = time.monotonic(), done, tokens
        new = tokens - self.tokens
        return f"{new / (time.monotonic() - self.start):,.0f} tokens/s" if stage == "scanning" and new > 0 else ""

    def seconds_left(self, done: int, total: int) -> float:
        new = done - self.sequences
        return (time.monotonic() - self.start) * (total - done) / new if new else 0.0


def _plain_lines() -> Report:
    said: set[tuple[str, int]] = set()
    pace = _Pace()

    def report(stage: str, done: int, total: int, tokens: int) -> None:
        speed = pace.speed(stage, done, tokens)
        tenth = done * _LINES // total if total else 0
        if (stage, tenth) in said:
            return
        said.add((stage, tenth))
        line = f"{stage}" if not total else f"{stage} {done}/{total} sequences"
        if speed:
            line += f", {speed}, {pace.seconds_left(done, total):.0f} s left"
        typer.echo(line, err=True)

    return report
