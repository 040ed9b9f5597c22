"""Report the progress of long work, and interrupt it on Ctrl-C and SIGTERM.

Work reports `advance(stage, done, total)`; a total of 0 means that it is unknown. Work that reads text also passes the
number of tokens, from which a listener can compute the speed. `silent` and the bar of the command line accept both.

SIGTERM stops a process that has no keyboard (a batch system, a container, a background job of a shell, which ignores
Ctrl-C). `Terminated` is a KeyboardInterrupt, so both are handled alike, and only the exit code differs.

    stoppable()       around a whole command: SIGTERM raises Terminated, and two signals at once count as one
    uninterrupted()   around work that must not be cut: a signal waits until the block is left
    Stepwise          around long work: a signal waits for the next step, a later one stops at once

Only signals that Python handles are touched: a signal that was ignored stays ignored, and handlers of a library's
caller are restored when a context is left. After `ignore_signals`, signals are ignored until the process ends.
Importing this module changes nothing.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, runtime_checkable

Advance = Callable[[str, int, int], None]
"""`advance(stage, done, total)`"""

AdvanceReading = Callable[[str, int, int, int], None]
"""`advance(stage, done, total, tokens)`, for work that reads text"""


@runtime_checkable
class Listener(Protocol):
    """Accepts both an `Advance` and an `AdvanceReading` call."""

    def __call__(self, stage: str, done: int, total: int, tokens: int | None = None, /) -> None: ...


def silent(stage: str, done: int, total: int, tokens: int | None = None) -> None:
    """Report nothing."""


Handler = Callable[[int, FrameType | None], object]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A second signal within this time comes from an impatient user, or is the first delivered twice (to process and group).
# It must not interrupt the saving that the first one started.
SAME_STOP_SECONDS = 1.0


class Terminated(KeyboardInterrupt):
    """Raised when SIGTERM arrives."""


class _Arrivals:
    """The signals that have arrived since a command began."""

    first: int | None = None
    at: float = 0.0

    def note(self, number: int) -> bool:
        """Return whether this signal is new, not a repetition of an earlier one."""
        now = time.monotonic()
        echo = self.first is not None and now - self.at < SAME_STOP_SECONDS
        if self.first is None:
            self.first = number
        if not echo:
            self.at = now
        return not echo


_arrivals = _Arrivals()


def interruption(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def exit_code() -> int:
    """Return 143 after SIGTERM and 130 after Ctrl-C."""
    return 128 + (_arrivals.first or signal.SIGINT)


def ignore_signals() -> None:
    """Ignore signals until the process ends: another signal would only change the exit code."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise an exception at the first Ctrl-C or SIGTERM and ignore repetitions. Wraps a whole command."""
    global _arrivals  # noqa: PLW0603  # signals belong to the process
    _arrivals = _Arrivals()

    def stop(number: int, frame: FrameType | None) -> None:
        if _arrivals.note(number):
            raise interruption(number)

    with _handling(stop, also_by_default=True):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block is left, then deliver the first one."""
    held: list[tuple[int, FrameType | None]] = []
    before: dict[int, Handler] = {}
    try:
        with _handling(lambda number, frame: held.append((number, frame))) as before:
            yield
    finally:  # also if the block raised
        if held:
            number, frame = held[0]
            before[number](number, frame)


class Stepwise:
    """Delay the first signal until the work calls `check` between two steps. A later signal raises at once."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._asked: int | None = None
        self._at = 0.0

    def check(self) -> None:
        if self._asked is not None:
            raise interruption(self._asked)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        def ask(number: int, frame: FrameType | None) -> None:
            _arrivals.note(number)
            if self._asked is None:
                self._asked, self._at = number, time.monotonic()
                self._tell()
            elif time.monotonic() - self._at >= SAME_STOP_SECONDS:
                raise interruption(number)

        with _handling(ask):
            yield


@contextmanager
def _handling(handler: Handler, *, also_by_default: bool = False) -> Iterator[dict[int, Handler]]:
    """Install a handler for both signals and yield the previous handlers. Does nothing outside the main thread.

    `also_by_default` also replaces the default action, which for SIGTERM ends the process at once.
    """
    before: dict[int, Handler] = {}
    taken: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        current = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: earlier for number, earlier in current.items() if callable(earlier)}
        taken = [n for n in SIGNALS if n in before or (also_by_default and current[n] is signal.SIG_DFL)]
    try:
        for number in taken:
            signal.signal(number, handler)
        yield before
    finally:
        for number in taken:
            if signal.getsignal(number) is handler:  # otherwise the block replaced it on purpose
                signal.signal(number, before.get(number, signal.SIG_DFL))
