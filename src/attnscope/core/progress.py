"""How long work says where it is: one call, `advance(stage, done, total)`, whoever listens.

A total of 0 means that nobody knows how much is left. Work that reads text can say how many tokens it has read, as a
fourth number, from which a listener may tell its speed; `silent` and the bar of the command line take either call.
"""

from __future__ import annotations

from collections.abc import Callable
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
