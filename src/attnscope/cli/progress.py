"""Progress on standard error: a bar with tokens per second and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
        started: list[float] = []

        def report(stage: str, done: int, total: int, tokens: int) -> None:
            if stage == "scanning" and not started:
                started.append(time.monotonic())
            elapsed = time.monotonic() - started[0] if started else 0.0
            speed = f"{tokens / elapsed:,.0f} tokens/s" if tokens and elapsed > 0 else ""
            count = f"{done}/{total} sequences" if total else ""
            bar.update(task, description=stage, completed=done, total=total or None, count=count, speed=speed)

        yield report


def _plain_lines() -> Report:
    said: set[tuple[str, int]] = set()
    started: list[float] = []

    def report(stage: str, done: int, total: int, tokens: int) -> None:
        if stage == "scanning" and not started:
            started.append(time.monotonic())
        tenth = done * _LINES // total if total else 0
        if (stage, tenth) in said:
            return
        said.add((stage, tenth))
        line = f"{stage}" if not total else f"{stage} {done}/{total} sequences"
        if started and tokens and (elapsed := time.monotonic() - started[0]) > 0:
            left = elapsed * (total - done) / done if done else 0.0
            line += f", {tokens / elapsed:,.0f} tokens/s, {left:.0f} s left"
        typer.echo(line, err=True)

    return report
