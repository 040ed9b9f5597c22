"""The shards of a corpus that is larger than memory, each made when it is wanted and forgotten afterwards.

Of B blocks of text and N sequences that are asked for, block k gives (k + 1) N // B - k N // B: N in all, from all over
the corpus, and blocks that give none are not read. Consecutive blocks make a shard, as many as give `SHARD_TOKENS`
tokens; in a shard sequences are drawn, sorted and padded as those of a small corpus are. What a shard holds follows
from the corpus and the options alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnscope.corpus.corpus import Corpus
from attnscope.corpus.stream import Stream
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.options import Sampling
from attnscope.trace.batches import Batch, Batches
from attnscope.trace.cut import SHARD_TOKENS
from attnscope.trace.windows import window_length


@dataclass(frozen=True)
class Streamed:
    loaded: Loaded
    text: Stream
    sampling: Sampling

    @cached_property
    def _bounds(self) -> tuple[tuple[int, int], ...]:
        """First block of each shard and the one after its last, by the tokens they give."""
        length = window_length(self.sampling.max_tokens, self.loaded.positions)
        enough = max(1, -(-SHARD_TOKENS // length))
        bounds: list[tuple[int, int]] = []
        start = given = 0
        for block in range(len(self.text)):
            given += self._quota(block)
            if given >= enough:
                bounds.append((start, block + 1))
                start, given = block + 1, 0
        if start < len(self.text):  # what is left is too short for a shard of its own
            bounds[-1:] = [(bounds[-1][0] if bounds else 0, len(self.text))]
        return tuple(bounds)

    def _quota(self, block: int) -> int:
        wanted, blocks = self.sampling.samples or 0, len(self.text)
        return (block + 1) * wanted // blocks - block * wanted // blocks

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sum(map(self._quota, range(a, b))) for a, b in self._bounds)

    @cached_property
    def head(self) -> Batches:
        return self._batches(0)

    def fingerprint(self) -> str:
        """Of the tokens of the first shard, and of what decides all others."""
        decides = [self.text.sha256, self.head.fingerprint(), self.sizes]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def shard(self, number: int) -> Sequence[Batch]:
        """Sequences are numbered through, as if every shard gave all that it may."""
        first = sum(self.sizes[:number])
        made = self._batches(number) if number else self.head
        return [replace(batch, samples=tuple(first + sample for sample in batch.samples)) for batch in made]

    def holding(self, samples: Iterable[int]) -> Iterator[Batch]:
        wanted, first = set(samples), 0
        for number, size in enumerate(self.sizes):
            if wanted.intersection(range(first, first + size)):
                yield from self.shard(number)
            first += size

    def _batches(self, number: int) -> Batches:
        start, end = self._bounds[number]
        texts = [text for block in range(start, end) if self._quota(block) for text in self.text.block(block)]
        made = feed(self.loaded, Corpus.of(self.text.name, texts), replace(self.sampling, samples=self.sizes[number]))
        return replace(made, sha256=self.text.sha256)
