"""A crew on a Ray cluster. Ray repeats a task whose worker or node died.

A worker process opens the job with its first task and keeps it open for later tasks; a restarted process opens it
again. The driver needs little memory: shards are files in the store, so results are small, and only a few tasks run at
a time.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.engine.crew import RETRIES, Job, failed, lost, refuse_disagreement, refused
from attnscope.engine.processes import cores

HELLO = "hello"  # a task that opens the job and does nothing else
ANSWERS_WITHIN = 10.0  # seconds to wait for an answer from the address
_OBJECT_STORE = 80 << 20  # bytes of object store for a cluster started here: results are small

_opened: dict[bytes, tuple[ExitStack, Any]] = {}  # in a worker process: the job that is open there


def _do(pickled: bytes, task: Any) -> tuple[str, Any, str]:
    """Do a task in a worker; return its outcome and the version of attnscope there."""
    version = attnscope.__version__
    try:
        if pickled not in _opened:
            while _opened:
                _opened.popitem()[1][0].close()
            with ExitStack() as stack:
                job = stack.enter_context(pickle.loads(pickled).open())
                _opened[pickled] = (stack.pop_all(), job)
        opened = _opened[pickled][1]
        return "done", (opened.agreed, opened.hello if task == HELLO else opened.do(task)), version
    except RefusalError as refusal:
        return "refused" if pickled in _opened else "not opened", refusal.sentence, version
    except Exception as error:
        return "failed", f"{type(error).__name__}: {_first_line(error)}", version


class OnRay:
    """A crew on Ray, as a context manager. On exit it stops the cluster if it started one."""

    def __init__(self, job: Job, workers: int | None, address: str | None, gpus: float) -> None:
        self._job, self._workers, self._address, self._gpus = job, workers, address, gpus
        self._pickled = pickle.dumps(job)
        self._hello: tuple[str, Any] | None = None
        self._begun = False

    def __enter__(self) -> OnRay:
        self._ray = _ray()
        if not self._ray.is_initialized():
            self._begin()
        resources = self._ray.cluster_resources()
        slots = int(resources.get("CPU", 1))
        if self._gpus:
            if resources.get("GPU", 0) < self._gpus:
                self.__exit__()
                raise RefusalError(
                    f"The cluster has {resources.get('GPU', 0):g} GPUs and each worker needs {self._gpus:g}: give "
                    "`gpus_per_worker=` less, or leave it out."
                )
            slots = int(resources["GPU"] / self._gpus)
        self._most = max(1, slots + 1 if self._workers is None or self._workers >= slots else self._workers)
        options = {"num_cpus": 1, "num_gpus": self._gpus, "max_retries": RETRIES}
        self._remote = self._ray.remote(**options)(_do)
        self._job_there = self._ray.put(self._pickled)
        return self

    def __exit__(self, *ignored: object) -> None:
        if self._begun:
            self._ray.shutdown()

    @property
    def hello(self) -> Any:
        if self._hello is None:
            for _ in self.each([HELLO]):
                pass
        assert self._hello is not None
        return self._hello[1]

    def each(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        rest = iter(tasks)
        under_way: dict[Any, Any] = {}
        try:
            while True:
                for task in islice(rest, self._most - len(under_way)):
                    under_way[self._remote.remote(self._job_there, task)] = task
                if not under_way:
                    return
                finished, _ = self._ray.wait(list(under_way), num_returns=1)
                for answer in finished:
                    task = under_way.pop(answer)
                    yield task, self._result(task, answer)
        finally:
            for answer in under_way:
                self._ray.cancel(answer, force=True)

    def _result(self, task: Any, answer: Any) -> Any:
        called = None if task == HELLO else self._job.called(task)
        errors = self._ray.exceptions
        try:
            kind, outcome, version = self._ray.get(answer)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            raise lost(called or "loading the model", type(error).__name__) from error
        except errors.RayError as error:
            raise failed(called, f"{type(error).__name__}: {_first_line(error)}") from error
        if version != attnscope.__version__:
            raise RefusalError(
                f"A worker has attnscope {version}, but the driver has {attnscope.__version__}: install one version "
                "on every node."
            )
        if kind in ("refused", "not opened"):  # the job could not be opened, so the task is not named
            raise refused(called if kind == "refused" else None, outcome)
        if kind == "failed":
            raise failed(called, outcome)
        agreed, result = outcome
        if self._hello is None:
            self._hello = (agreed, result)
        refuse_disagreement(self._hello[0], agreed)
        return result

    def _begin(self) -> None:
        """Start a cluster here, or connect to the one at the address."""
        quietly: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
        self._begun = True
        try:
            if self._address is None:
                size = {"num_cpus": self._workers or cores(), "object_store_memory": _OBJECT_STORE}
                with _keeping_sigterm(self._ray):
                    self._ray.init(**quietly, **size)
            else:
                _refuse_silence(self._address)
                quietly.pop("include_dashboard")
                with _keeping_sigterm(self._ray):
                    self._ray.init(address=self._address, **quietly)
        except RefusalError:
            raise
        except Exception as error:  # Ray raises many types of error, and a bare Exception if a node is slow to start
            self._ray.shutdown()
            where = f" at {self._address}" if self._address else ""
            raise RefusalError(
                f"The Ray cluster{where} cannot be used ({_first_line(error)}): check the address, and that Ray "
                "and Python have the same version on every node."
            ) from error


@contextmanager
def _keeping_sigterm(ray: Any) -> Iterator[None]:
    """Restore the handler of SIGTERM on exit: Ray installs a handler that exits with code 15 and no message.

    If a SIGTERM reached Ray's handler inside this context, stop Ray and pass the signal to the earlier handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as leaving:
        if leaving.code != signal.SIGTERM or not callable(before):
            raise
        ray.shutdown()
        before(signal.SIGTERM, None)
    finally:
        if before is not None:  # None means that Python did not install the handler
            signal.signal(signal.SIGTERM, before)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise RefusalError("`engine='ray'` needs Ray: pip install 'attnscope[ray]', or use `workers=`.") from error
    return ray


def _refuse_silence(address: str) -> None:
    """Refuse an address that does not answer. Ray would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not host or not port.isdecimal():
        raise RefusalError(f"'{address}' is not the address of a Ray cluster: write host:port, or auto.")
    try:
        socket.create_connection((host, int(port)), ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise RefusalError(
            f"There was no answer from {address} within {ANSWERS_WITHIN:g} s ({error}): check the address, or start a "
            "cluster "
            "there with `ray start --head`."
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]
