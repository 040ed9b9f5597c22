"""A crew: workers that open a job once and then do its tasks in any order. Tasks of workers that died are repeated.

    with Processes(job, workers=4) as crew:
        crew.hello                                the greeting of the first worker that opened the job
        for task, result in crew.each(tasks):     in the order in which they finish

A job is plain data that can be pickled. An opened job has a greeting `hello` (any data), a method `do(task)`, and
`agreed`: a text that describes the work and must be equal in every worker. A task writes its results into a file before
it answers, so nothing is lost when a worker restarts, and answers are small.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, runtime_checkable

from attnscope.core.errors import RefusalError, at_least, one_of

_LENGTH = struct.Struct(">Q")


def send(stream: BinaryIO, message: Any) -> None:
    """Write a message: a pickle with its length in front."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read the next message; raise EOFError at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = stream.read(length := _LENGTH.unpack(head)[0])
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)  # safe: only attnscope writes to this stream


FROM_ENVIRONMENT = "env"
# Environment variables of torchrun and SLURM: index of this part, number of parts, and the lowest index.
_SYSTEMS = (
    ("RANK", "WORLD_SIZE", None),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("SLURM_PROCID", "SLURM_NTASKS", None),
)


@dataclass(frozen=True)
class ArrayPart:
    """Part `number` (counted from 1) of `of` parts of the work.

    Part i of n has shards i-1, i-1+n, i-1+2n, ... The numbers of shards do not depend on n, so work that was begun in
    64 parts can be finished in 8.
    """

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def shards(self, count: int) -> range:
        return range(self.number - 1, count, self.of)


def part(text: str, environment: Mapping[str, str] | None = None) -> ArrayPart:
    """Read `3/64`, or `env` to take the part from the batch system's environment variables."""
    if text == FROM_ENVIRONMENT:
        return _from_environment(os.environ if environment is None else environment)
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if match is None or int(match[2]) == 0:
        raise RefusalError(f"'{text}' is not a part: write `shard='3/64'` for the third of 64, or `shard='env'`.")
    return _checked(int(match[1]), int(match[2]))


def _from_environment(environment: Mapping[str, str]) -> ArrayPart:
    for name, count, lowest in _SYSTEMS:
        if name in environment and count in environment:
            try:
                first = int(environment.get(lowest, "0")) if lowest else 0
                return _checked(int(environment[name]) - first + 1, int(environment[count]))
            except ValueError:
                raise RefusalError(
                    f"{name} and {count} are '{environment[name]}' and '{environment[count]}', which are not numbers: "
                    "write `shard='3/64'` instead."
                ) from None
    raise RefusalError(
        "`shard='env'` finds neither RANK and WORLD_SIZE nor SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT in the "
        "environment: start it under torchrun or in a job array, or write `shard='3/64'`."
    )


def _checked(number: int, of: int) -> ArrayPart:
    if not 1 <= number <= of:
        raise RefusalError(
            f"There is no part {number} of {of}: parts are counted from 1, so write `shard='1/{max(of, 1)}'` for the "
            f"first of {max(of, 1)}."
        )
    return ArrayPart(number, of)


RETRIES = 3  # how often a task is given to another worker after its worker died


@runtime_checkable
class Opened(Protocol):
    agreed: str
    hello: Any

    def do(self, task: Any) -> Any: ...


@runtime_checkable
class Job(Protocol):
    def open(self) -> AbstractContextManager[Any]: ...

    def called(self, task: Any) -> str:
        """Return the name of a task for users: `shard 3`."""
        ...


@runtime_checkable
class Crew(Protocol):
    @property
    def hello(self) -> Any: ...

    def each(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]: ...


def answer(crew: Crew, task: Any) -> Any:
    """Return the answer to a single task."""
    return next(result for _, result in crew.each([task]))


def refuse_disagreement(first: str, other: str) -> None:
    if first != other:
        raise RefusalError(
            "Workers disagree about the work: the model, the corpus or the version of attnscope differs between "
            "them, or changed while they started. Make these equal on all workers, and start again."
        )


def refused(called: str | None, sentence: str) -> RefusalError:
    return RefusalError(sentence if called is None else f"{_first_upper(called)}: {sentence}")


def failed(called: str | None, reason: str) -> RefusalError:
    return RefusalError(
        f"{'A worker' if called is None else _first_upper(called)} failed ({reason}): run it in one process, without "
        "`workers=`, to see where; finished work is kept."
    )


def lost(called: str, ending: str) -> RefusalError:
    return RefusalError(
        f"{_first_upper(called)} failed: {RETRIES + 1} workers died while they ran it ({ending}). It probably needs "
        "more "
        "memory than there is: use fewer workers or a smaller `batch_size=`, and start again; finished work is kept."
    )


def _first_upper(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Workers:
    """The processes that do the work. `workers=None` means one process here, or all cores of a cluster."""

    workers: int | None = None
    engine: str = "local"
    address: str | None = None
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        one_of(self.engine, ENGINES, "engine")
        if not 0 <= self.gpus_per_worker < math.inf:
            raise RefusalError(f"`gpus_per_worker=` cannot be {self.gpus_per_worker:g}: give 0 or a larger number.")
        if self.engine == "local" and (self.address is not None or self.gpus_per_worker):
            raise RefusalError("`address=` and `gpus_per_worker=` need a cluster: add `engine='ray'`.")
        if self.workers is not None:
            at_least(self.workers, 1, "workers")

    def crew(self, job: Job) -> AbstractContextManager[Crew]:
        if self.engine == "ray":
            from attnscope.engine.on_ray import OnRay

            return OnRay(job, self.workers, self.address, self.gpus_per_worker)
        from attnscope.engine.processes import Processes

        return Processes(job, self.workers or 1)
