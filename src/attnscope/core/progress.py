"""How long work says where it is: one call, `advance(stage, done, total)`, whoever listens.

A total of 0 means that nobody knows how much is left. Work that reads text can say how many tokens it has read, as a
fourth number, from which a listener may tell its speed; `silent` and the bar of the command line take either call.
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
"""`advance(stage, done, total, tokens)`, of work that reads text"""


@runtime_checkable
class Listener(Protocol):
    """What serves as an `Advance` and as an `AdvanceReading`."""

    def __call__(self, stage: str, done: int, total: int, tokens: int | None = None, /) -> None: ...


def silent(stage: str, done: int, total: int, tokens: int | None = None) -> None:
    """A listener that says nothing."""


# Ctrl-C and SIGTERM: one way to stop, that waits for a whole step and never loses what is being saved.
#
# SIGTERM is what a process is stopped with where nobody sits at a keyboard (a batch system, a container, a shell's
# background job, which ignores Ctrl-C). It takes the way of Ctrl-C through the program: `Terminated` is a
# KeyboardInterrupt, so whatever keeps work for one keeps it for the other, and only the exit code tells them apart.
#
#     stoppable()       around a whole command: SIGTERM raises Terminated, and two signals at once count as one
#     uninterrupted()   around what must be done whole: a signal waits until the block is left
#     Stepwise          around long work: a signal waits for the next step, a later one stops at once
#
# Only signals that Python handles are touched: what was ignored when the process began stays ignored, and a library's
# caller keeps the handlers they set. Handlers are put back when a context is left, unless `leave_in_peace` was called
# inside: between the end of a context and the end of the process there is then no moment in which a signal can raise.
# Nothing happens on import.

Handler = Callable[[int, FrameType | None], object]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A second press within this many seconds is impatience, or one stop delivered twice (to the process and to its group),
# and not the wish to throw away what the first one is about to keep.
SAME_STOP_SECONDS = 1.0


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


class _Arrivals:
    """What arrived in this process since a command began."""

    first: int | None = None
    at: float = 0.0

    def note(self, number: int) -> bool:
        """Whether this is a new wish to stop, and not the echo of one."""
        now = time.monotonic()
        echo = self.first is not None and now - self.at < SAME_STOP_SECONDS
        if self.first is None:
            self.first = number
        if not echo:  # each wish is answered in peace, not the first alone
            self.at = now
        return not echo


_arrivals = _Arrivals()


def interruption(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def exit_code() -> int:
    """128 and the signal that stopped this command: 143 after SIGTERM, 130 after Ctrl-C."""
    return 128 + (_arrivals.first or signal.SIGINT)


def leave_in_peace() -> None:
    """A stopped command is on its way out: another signal would change nothing but its exit code. Holds to the end."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM raise, once: for a command, from beginning to end."""
    global _arrivals  # noqa: PLW0603  a command is the whole process, and so are its signals
    _arrivals = _Arrivals()

    def stop(number: int, frame: FrameType | None) -> None:
        if _arrivals.note(number):
            raise interruption(number)

    with _handling(stop, also_by_default=True):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block is done, then let the first one through."""
    held: list[tuple[int, FrameType | None]] = []
    before: dict[int, Handler] = {}
    try:
        with _handling(lambda number, frame: held.append((number, frame))) as before:
            yield
    finally:  # also where the block failed: a wish to stop is not forgotten for that
        if held:
            number, frame = held[0]
            before[number](number, frame)


class Stepwise:
    """Work in steps: the first signal waits for `check`, which the work calls between steps; a later one does not."""

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
    """Put a handler in the place of Python's, for both signals; yields what was there before.

    Signals reach the main thread only, so elsewhere there is nothing to do. `also_by_default` takes a signal over too
    that would end the process without a word, as SIGTERM does.
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
            if signal.getsignal(number) is handler:  # what was set inside is another's decision
                signal.signal(number, before.get(number, signal.SIG_DFL))
