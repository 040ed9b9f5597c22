"""`attnscope timeline RUN --live`: show a run in the terminal while another process trains."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.commands.timeline.read import LOOKS, RunReader
from attnscope.commands.timeline.terminal import frame

if TYPE_CHECKING:
    from rich.console import Console

LEAVE = "qQ\x04"
Pressed = Callable[[float], bool]


def live(run: Path, refresh: float, once: bool) -> None:
    """Show the run and refresh it until q or Ctrl-C; with `once`, or without a terminal, print it and return."""
    from rich.console import Console

    from attnscope.reports.terminal import print_screen

    reader = RunReader(run)
    console = Console(highlight=False)
    if once or not console.is_terminal or not sys.stdin.isatty():
        print_screen(frame(reader.timeline, width=console.size.width, height=60, live=False), {}, console)
        return
    with suppress(KeyboardInterrupt):  # Ctrl-C quits like q: another process writes the run, so nothing is lost
        _follow(reader, console, refresh)


def _follow(reader: RunReader, console: Console, refresh: float) -> None:
    from rich.live import Live

    with _single_keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            reader.more()
            width, height = console.size
            screen.update(
                frame(reader.timeline, width=width, height=height, silent=_silent(reader.folder)), refresh=True
            )
            if pressed(refresh):
                return


def _silent(folder: Path) -> float | None:
    """Return the seconds since the last look, or None before the first."""
    try:
        return max(0.0, time.time() - (folder / LOOKS).stat().st_mtime)
    except OSError:
        return None


@contextmanager
def _single_keys() -> Iterator[Pressed]:
    """Read keys without Enter and without echo; restore the terminal afterwards."""
    try:
        import termios
        import tty
    except ImportError:  # on Windows only Ctrl-C quits
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
    """Return whether within so many seconds a key to quit was pressed, or the input was closed."""
    import select

    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([number], [], [], left)
        if ready:
            typed = os.read(number, 64).decode(errors="replace")
            if not typed or any(key in LEAVE for key in typed):
                return True
    return False
