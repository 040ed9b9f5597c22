"""A crew of processes on this machine, with the cores divided among them.

Each worker is a new Python process that imports what it needs: nothing is forked, and the caller's script is not run
again. When a worker dies, its task goes to another worker, and a new worker is started. A task whose workers died more
than `RETRIES` times is refused.
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
_MOST_PER_CORE = 16  # more workers per core only compete for memory
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    ready: bool = False
    task: Any = _NOTHING

    @property
    def ending(self) -> str:
        """Return how the worker ended, and its last line of output."""
        code = self.process.wait()
        how = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.errors.seek(0)
        said = self.errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return f"{how}: {said[-1][:200]}" if said else how


class Processes:
    """A crew of local processes, as a context manager. On exit it kills all workers."""

    def __init__(self, job: Job, workers: int) -> None:
        at_least(workers, 1, "workers")
        if workers > (most := _MOST_PER_CORE * cores()):
            raise RefusalError(
                f"{workers} workers on {count(cores(), 'core')} would only compete for memory: pass "
                f"`workers={cores()}`, and never more than {most}."
            )
        self._job, self._workers = job, workers
        self._pickled = pickle.dumps(job)
        self._living: list[_Worker] = []
        self._hello: tuple[str, Any] | None = None
        self._died_early = 0  # workers that died before they opened the job
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
        for worker in self._living:
            worker.process.kill()
        for worker in self._living:
            self._close(worker)
        self._living.clear()
        self._selector.close()

    @property
    def hello(self) -> Any:
        while self._hello is None:
            for worker in self._heard():
                self._take(worker)
        return self._hello[1]

    @property
    def processes(self) -> tuple[int, ...]:
        """Return the process ids of the living workers."""
        return tuple(worker.process.pid for worker in self._living)

    def each(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        waiting = deque(tasks)
        while waiting or any(worker.task is not _NOTHING for worker in self._living):
            for worker in self._living:
                if waiting and worker.ready and worker.task is _NOTHING:
                    worker.task = waiting.popleft()
                    with contextlib.suppress(BrokenPipeError):  # the worker died, which the selector reports next
                        send(_pipe(worker.process.stdin), worker.task)
            for worker in self._heard():
                task = worker.task
                result = self._take(worker)
                if result is not _NOTHING:
                    yield task, result
                elif task is not _NOTHING:  # the worker died
                    waiting.appendleft(task)

    def _heard(self) -> list[_Worker]:
        return [key.data for key, _ in self._selector.select()]

    def _take(self, worker: _Worker) -> Any:
        """Return the result of a worker, or `_NOTHING` if it sent a hello or died."""
        try:
            kind, answer = receive(_pipe(worker.process.stdout))
        except EOFError:
            self._replace(worker)
            return _NOTHING
        if kind == "hello":
            if self._hello is None:
                self._hello = answer
            refuse_disagreement(self._hello[0], answer[0])
            worker.ready = True
            return _NOTHING
        if kind == "done":
            worker.task = _NOTHING
            return answer
        which = None if worker.task is _NOTHING else self._job.called(worker.task)
        raise refused(which, answer) if kind == "refused" else failed(which, answer)

    def _replace(self, worker: _Worker) -> None:
        self._living.remove(worker)
        ending = worker.ending
        self._close(worker)
        if worker.task is not _NOTHING:
            self._ended[key := pickle.dumps(worker.task)] += 1
            if self._ended[key] > RETRIES:
                raise lost(self._job.called(worker.task), ending)
        elif not worker.ready:
            self._died_early += 1
            if self._died_early > RETRIES:
                raise RefusalError(
                    f"Workers die while they load the model ({ending}): {self._workers} copies of it may be more than "
                    "memory holds, so use fewer `workers=`."
                )
        self._start()

    def _start(self) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker is removed
        process = subprocess.Popen(
            [sys.executable, "-m", "attnscope.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(self._workers),
            start_new_session=True,  # Ctrl-C is handled by the driver
        )
        worker = _Worker(process, errors)
        self._living.append(worker)
        self._selector.register(_pipe(process.stdout), selectors.EVENT_READ, worker)
        with contextlib.suppress(BrokenPipeError):
            send(_pipe(process.stdin), self._pickled)

    def _close(self, worker: _Worker) -> None:
        self._selector.unregister(_pipe(worker.process.stdout))
        worker.process.wait()
        for stream in (worker.process.stdin, worker.process.stdout, worker.errors):
            with contextlib.suppress(OSError):
                _pipe(stream).close()


def environment(workers: int) -> Mapping[str, str]:
    """Return the environment variables of a worker: its module path and its number of threads."""
    # OpenMP takes a list with one number per nesting level
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    asked = int(first) if first.isdecimal() else cores()
    # All variables are set, because MKL's own would take precedence over OMP_NUM_THREADS.
    threads = dict.fromkeys(_THREADS, str(max(1, min(asked, cores() // workers))))
    path = os.pathsep.join(dict.fromkeys(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")])))
    return {**os.environ, **threads, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pipe(stream: IO[bytes] | None) -> Any:
    assert stream is not None
    return stream
