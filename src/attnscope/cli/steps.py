"""Progress of work that counts steps, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from attnscope.core.construction import Advance
from attnscope.core.visible import clean

_EVERY = 10.0  # seconds between plain lines: a search says something hundreds of times a second


@contextmanager
def stepping() -> Iterator[Advance]:
    """Yields `advance(stage, done, total)`; a total of 0 means that nobody knows how much is left."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=3, no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("starting", total=None, count="")

        def advance(stage: str, done: int, total: int) -> None:
            count = f"{done}/{total}" if total else ""
            bar.update(task, description=clean(stage), completed=done, total=total or None, count=count)

        yield advance


def _plain_lines() -> Advance:
    last = time.monotonic()

    def advance(stage: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            typer.echo(clean(f"{stage} {done}/{total}" if total else stage), err=True)

    return advance
