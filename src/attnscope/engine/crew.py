"""A crew: workers that each open a job once and then do tasks of it, in any order, again where one was lost.

    with Processes(job, workers=4) as crew:
        crew.hello                                what the first worker said when it had opened the job
        for task, result in crew.each(tasks):     as they come

A job is plain data that can be pickled. What it opens says `agreed`, a text that must be the same in every worker
(otherwise they would not be doing the same work), and a `hello`, and does tasks. Workers keep nothing that a restart
would lose: what a task makes, it puts into a file before it answers, and answers are small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from attnscope.core.errors import RefusalError

RETRIES = 3  # how often a task is given to another worker after the death of one


@runtime_checkable
class Opened(Protocol):
    agreed: str
    hello: Any

    def do(self, task: Any) -> Any: ...


@runtime_checkable
class Job(Protocol):
    def open(self) -> AbstractContextManager[Any]: ...

    def called(self, task: Any) -> str:
        """`shard 3`, for people."""
        ...


@runtime_checkable
class Crew(Protocol):
    @property
    def hello(self) -> Any: ...

    def each(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]: ...


def one(crew: Crew, task: Any) -> Any:
    """The answer to a single task."""
    return next(result for _, result in crew.each([task]))


def refuse_disagreement(first: str, other: str) -> None:
    if first != other:
        raise RefusalError(
            "Workers do not agree on what to do: the model, the corpus or the version of attnscope differs between "
            "them, or changed while they started. Give all the same, and start again."
        )


def refused(called: str | None, sentence: str) -> RefusalError:
    return RefusalError(sentence if called is None else f"{_first_upper(called)}: {sentence}")


def failed(called: str | None, reason: str) -> RefusalError:
    return RefusalError(
        f"{'A worker' if called is None else _first_upper(called)} failed ({reason}): run it in one process, without "
        "--workers, to see where; what is done is kept."
    )


def lost(called: str, ending: str) -> RefusalError:
    return RefusalError(
        f"{_first_upper(called)} cost {RETRIES + 1} workers their life ({ending}): look at memory, use fewer "
        "workers or a smaller --batch-size, and start again; what is done is kept."
    )


def _first_upper(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"
