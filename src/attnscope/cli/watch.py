"""`attnscope watch`: a run in the terminal while it is written elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from attnscope.records.timeline.read import RunReader

LEAVE = "qQ\x04"
Pressed = Callable[[float], bool]


def watch(
    run: Annotated[Path, typer.Argument(help="The folder that a watch writes its run into.", metavar="RUN")],
    refresh: Annotated[float, typer.Option(help="Seconds from one look at the folder to the next.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the run as it is now, and stop.")] = False,
) -> None:
    """Follow a RUN while it is trained elsewhere: alarms, loss, every measure as a line, tokens a second. q leaves."""
    from rich.console import Console

    from attnscope.records.timeline.read import RunReader

    reader = RunReader(run)
    console = Console(highlight=False)
    if once or not console.is_terminal or not sys.stdin.isatty():
        from attnscope.reporting.terminal import print_screen
        from attnscope.reporting.timeline.live import frame

        size = console.size
        print_screen(frame(reader.timeline, width=size.width, height=60, live=False), {}, console)
        return
    try:
        _follow(reader, console, refresh)
    except KeyboardInterrupt:  # Ctrl-C leaves as q does: nothing is lost, the run is somebody else's
        return


def _follow(reader: RunReader, console: object, refresh: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from attnscope.reporting.timeline.live import frame

    assert isinstance(console, Console)

    def now() -> object:
        size = console.size
        return frame(reader.timeline, width=size.width, height=size.height, silent=_silent(reader.folder))

    with _single_keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            reader.more()
            live.update(now(), refresh=True)  # type: ignore[arg-type]
            if pressed(refresh):
                return


def _silent(folder: Path) -> float | None:
    from attnscope.records.timeline.read import LOOKS

    try:
        return max(0.0, time.time() - (folder / LOOKS).stat().st_mtime)
    except OSError:
        return None


@contextmanager
def _single_keys() -> Iterator[Pressed]:
    """Keys without Enter, and not shown; the terminal is as it was afterwards, whatever happens."""
    try:
        import termios
        import tty
    except ImportError:  # not on Windows: there Ctrl-C leaves
        yield _nothing_pressed
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield lambda seconds: _pressed(number, seconds)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _nothing_pressed(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed(number: int, seconds: float) -> bool:
    """Whether a key that leaves came within so many seconds, or nobody can press any more."""
    import select

    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([number], [], [], left)
        if ready:
            typed = os.read(number, 64).decode(errors="replace")
            if not typed or any(key in LEAVE for key in typed):
                return True
    return False
