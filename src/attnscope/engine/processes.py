"""A crew of processes on this machine, with the cores divided among them.

Each is a Python of its own that imports what it needs (nothing is forked, and a caller's script is not run again). A
worker that dies gives its task back: it goes to another, and a new worker takes the dead one's place. A task that kills
more workers than `RETRIES` is refused, by its name.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from attnscope.core.errors import RefusalError, at_least
from attnscope.core.words import count
from attnscope.engine.crew import RETRIES, Job, failed, lost, receive, refuse_disagreement, refused, send

_NOTHING = object()
_MOST_PER_CORE = 16  # more of them only take each other's memory
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(eq=False)
class _Hand:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    ready: bool = False
    task: Any = _NOTHING

    @property
    def ending(self) -> str:
        """In words: how it ended, and the last it said."""
        code = self.process.wait()
        how = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.errors.seek(0)
        said = self.errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return f"{how}: {said[-1][:200]}" if said else how


class Processes:
    """Mutable while the work runs. A context manager: whatever happens, no worker is left behind."""

    def __init__(self, job: Job, workers: int) -> None:
        at_least(workers, 1, "workers")
        if workers > (most := _MOST_PER_CORE * cores()):
            raise RefusalError(
                f"{workers} workers on {count(cores(), 'core')} would only take each other's memory: pass "
                f"`workers={cores()}`, and never more than {most}."
            )
        self._job, self._workers = job, workers
        self._pickled = pickle.dumps(job)
        self._hands: list[_Hand] = []
        self._told: tuple[str, Any] | None = None
        self._unborn = 0  # workers that died before they could begin
        self._ended: Counter[bytes] = Counter()
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Processes:
        try:
            for _ in range(self._workers):
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *ignored: object) -> None:
        for hand in self._hands:
            hand.process.kill()
        for hand in self._hands:
            self._bury(hand)
        self._hands.clear()
        self._selector.close()

    @property
    def hello(self) -> Any:
        while self._told is None:
            for hand in self._heard():
                self._take(hand)
        return self._told[1]

    @property
    def processes(self) -> tuple[int, ...]:
        """Numbers of the workers that live."""
        return tuple(hand.process.pid for hand in self._hands)

    def each(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        waiting = deque(tasks)
        while waiting or any(hand.task is not _NOTHING for hand in self._hands):
            for hand in self._hands:
                if waiting and hand.ready and hand.task is _NOTHING:
                    hand.task = waiting.popleft()
                    with contextlib.suppress(BrokenPipeError):  # it is dead, which is heard next
                        send(_pipe(hand.process.stdin), hand.task)
            for hand in self._heard():
                task = hand.task
                result = self._take(hand)
                if result is not _NOTHING:
                    yield task, result
                elif task is not _NOTHING:  # its worker died
                    waiting.appendleft(task)

    def _heard(self) -> list[_Hand]:
        return [key.data for key, _ in self._selector.select()]

    def _take(self, hand: _Hand) -> Any:
        """What a worker has to say: a result, or `_NOTHING` after a hello or a death."""
        try:
            kind, said = receive(_pipe(hand.process.stdout))
        except EOFError:
            self._replace(hand)
            return _NOTHING
        if kind == "hello":
            if self._told is None:
                self._told = said
            refuse_disagreement(self._told[0], said[0])
            hand.ready = True
            return _NOTHING
        if kind == "done":
            hand.task = _NOTHING
            return said
        which = None if hand.task is _NOTHING else self._job.called(hand.task)
        raise refused(which, said) if kind == "refused" else failed(which, said)

    def _replace(self, hand: _Hand) -> None:
        self._hands.remove(hand)
        ending = hand.ending
        self._bury(hand)
        if hand.task is not _NOTHING:
            self._ended[key := pickle.dumps(hand.task)] += 1
            if self._ended[key] > RETRIES:
                raise lost(self._job.called(hand.task), ending)
        elif not hand.ready:
            self._unborn += 1
            if self._unborn > RETRIES:
                raise RefusalError(
                    f"Workers die while they load the model ({ending}): {self._workers} copies of it may be more than "
                    "memory holds, so use fewer `workers=`."
                )
        self._start()

    def _start(self) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker is buried
        process = subprocess.Popen(
            [sys.executable, "-m", "attnscope.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(self._workers),
            start_new_session=True,  # Ctrl-C is the driver's to answer
        )
        hand = _Hand(process, errors)
        self._hands.append(hand)
        self._selector.register(_pipe(process.stdout), selectors.EVENT_READ, hand)
        with contextlib.suppress(BrokenPipeError):
            send(_pipe(process.stdin), self._pickled)

    def _bury(self, hand: _Hand) -> None:
        self._selector.unregister(_pipe(hand.process.stdout))
        hand.process.wait()
        for stream in (hand.process.stdin, hand.process.stdout, hand.errors):
            with contextlib.suppress(OSError):
                _pipe(stream).close()


def environment(workers: int) -> Mapping[str, str]:
    """Where a worker finds its modules, and how many threads it may use."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # OpenMP takes a list, a number a level
    asked = int(first) if first.isdecimal() else cores()  # one limit for all: MKL's own would go before it
    threads = dict.fromkeys(_THREADS, str(max(1, min(asked, cores() // workers))))
    path = os.pathsep.join(dict.fromkeys(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")])))
    return {**os.environ, **threads, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pipe(stream: IO[bytes] | None) -> Any:
    assert stream is not None
    return stream
