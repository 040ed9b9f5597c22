"""A corpus cut into numbered shards of a few batches each: the units in which a scan is done, stored and repeated.

Where a shard begins depends on the batches alone (a shard is full when it holds `SHARD_TOKENS` tokens, and ends with a
batch), never on the workers. So the batches of a shard are the same on every worker, and the model gives the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from attnscope.data.batches import Batch, Batches

SHARD_TOKENS = 8192  # a second of a small model on one core, and well above what writing a shard costs
MOST_SHARDS = 1 << 15  # shards of larger corpora hold more tokens, so that one process can merge their files


@runtime_checkable
class Cut(Protocol):
    """`head` are batches to probe a model with: all if they are in memory, else those of the first shard. `sizes` are
    the sequences of each shard, at most."""

    @property
    def head(self) -> Batches: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...
    def fingerprint(self) -> str: ...
    def shard(self, number: int) -> Iterable[Batch]: ...
    def holding(self, samples: Iterable[int]) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class InMemory:
    """The shards of batches that are all in memory."""

    head: Batches
    shard_tokens: int = SHARD_TOKENS

    @cached_property
    def _bounds(self) -> tuple[tuple[int, int], ...]:
        bounds: list[tuple[int, int]] = []
        start = tokens = 0
        for number, batch in enumerate(self.head.batches, start=1):
            tokens += batch.tokens
            if tokens >= self.shard_tokens or number == len(self.head):
                bounds.append((start, number))
                start, tokens = number, 0
        return tuple(bounds)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sum(map(len, self.head.batches[a:b])) for a, b in self._bounds)

    def fingerprint(self) -> str:
        return self.head.fingerprint()

    def shard(self, number: int) -> Sequence[Batch]:
        start, end = self._bounds[number]
        return self.head.batches[start:end]

    def holding(self, samples: Iterable[int]) -> Iterator[Batch]:
        """Return the batches that contain these sequences."""
        wanted = set(samples)
        return (batch for batch in self.head if wanted.intersection(batch.samples))
