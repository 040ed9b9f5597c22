"""Cut a corpus into numbered shards of a few batches each. A scan computes, stores and retries one shard at a time.

A shard is complete with the first batch that brings it to `SHARD_TOKENS` tokens. So the batches of a shard do not
depend on the number of workers, and every worker gets the same numbers for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

from attnscope.data.batches import Batch, Batches

SHARD_TOKENS = 8192  # a small model needs a second for it on one core, far longer than it takes to write a shard
MOST_SHARDS = 1 << 15  # shards of larger corpora hold more tokens, so that one process can merge their files


@runtime_checkable
class Cut(Protocol):
    """A corpus cut into shards. `head` holds the batches with which a model is probed: all batches if they are in
    memory, otherwise those of the first shard. `sizes` are upper bounds on the number of sequences in each shard."""

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
    bounds: tuple[tuple[int, int], ...] | None = None  # first and last batch of each shard; None: by tokens

    def with_head(self, head: Batches) -> InMemory:
        """Return the same shards of batches that were counted again."""
        return replace(self, head=head, bounds=self._bounds)

    @cached_property
    def _bounds(self) -> tuple[tuple[int, int], ...]:
        if self.bounds is not None:
            return self.bounds
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
