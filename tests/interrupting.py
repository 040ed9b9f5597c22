"""Signals in tests: what a process does with Ctrl-C must not depend on how the tests themselves were started.

A shell's background job and some CI systems start processes with SIGINT ignored, and children inherit that. So a test
that sends a signal says which disposition it needs: for itself with `hearing_signals`, for a child with one of the two
functions that are given to `subprocess.Popen` as `preexec_fn`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hearing_signals() -> Iterator[None]:
    """Inside, this process hears Ctrl-C as Python does when it is started from a terminal."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_from_a_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def as_a_background_job() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
