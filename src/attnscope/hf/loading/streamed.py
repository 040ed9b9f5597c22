"""The shards of a corpus that is larger than memory, each made when it is wanted and forgotten afterwards.

The N sequences that are asked for come from a systematic sample of blocks, by length. Let C be the characters of the
corpus, c(k) those of its first k blocks, and r a number below C that the seed draws. The first k blocks give
g(k) = (c(k) N + r) // C sequences and the next one g(k + 1) - g(k): N in all, from all over the corpus, and blocks
that give none are not read. Over r, a block gives (c(k + 1) - c(k)) N / C in the mean: every stretch of text has the
same chance, whether its file or document is short or long.

Consecutive blocks make a piece, as many as give `SHARD_TOKENS` tokens; in a piece sequences are drawn, sorted and
padded as those of a small corpus are. A shard is one piece, or as many consecutive ones as keep the number of shards at
`MOST_SHARDS`: a billion tokens are 30,518 shards of four pieces. What a shard holds follows from the corpus and the
options alone.
"""

from __future__ import annotations

import hashlib
import json
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from attnscope.corpus.corpus import Corpus
from attnscope.corpus.stream import Stream
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.options import Sampling
from attnscope.trace.batches import Batch, Batches
from attnscope.trace.cut import MOST_SHARDS, SHARD_TOKENS
from attnscope.trace.windows import window_length


@dataclass(frozen=True)
class Streamed:
    loaded: Loaded
    text: Stream
    sampling: Sampling

    @cached_property
    def _pieces(self) -> tuple[tuple[int, int], ...]:
        """First block of each piece and the one after its last, by the tokens they give."""
        length = window_length(self.sampling.max_tokens, self.loaded.positions)
        enough = max(1, -(-SHARD_TOKENS // length))
        bounds: list[tuple[int, int]] = []
        start = given = 0
        for block in range(len(self.text)):
            given += self._quota(block)
            if given >= enough:
                bounds.append((start, block + 1))
                start, given = block + 1, 0
        if start < len(self.text):  # what is left is too short for a piece of its own
            bounds[-1:] = [(bounds[-1][0] if bounds else 0, len(self.text))]
        return tuple(bounds)

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """The number of each piece's first sequence, as if every piece gave all that it may; at the end, of all."""
        return tuple(map(self._given, (0, *(end for _, end in self._pieces))))

    @cached_property
    def _shards(self) -> tuple[range, ...]:
        """Which pieces each shard has: one, and more only where there would be too many shards."""
        together = -(-len(self._pieces) // MOST_SHARDS)
        whole = range(len(self._pieces))
        return tuple(whole[a : a + together] for a in range(0, len(whole), together))

    @cached_property
    def _offset(self) -> int:
        return random.Random(self.sampling.seed).randrange(self.text.characters(len(self.text)))

    def _given(self, blocks: int) -> int:
        """Sequences of so many blocks, the first ones."""
        wanted, whole = self.sampling.samples or 0, self.text.characters(len(self.text))
        return (self.text.characters(blocks) * wanted + self._offset) // whole

    def _quota(self, block: int) -> int:
        return self._given(block + 1) - self._given(block)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._firsts[pieces.stop] - self._firsts[pieces.start] for pieces in self._shards)

    @cached_property
    def head(self) -> Batches:
        return self._batches(0)

    def fingerprint(self) -> str:
        """Of the tokens of the first piece, and of what decides all others."""
        decides = [self.text.sha256, self.head.fingerprint(), self.sizes]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def shard(self, number: int) -> Iterator[Batch]:
        """Of its pieces one is in memory at a time."""
        for piece in self._shards[number]:
            yield from self._numbered(piece)

    def holding(self, samples: Iterable[int]) -> Iterator[Batch]:
        for piece in sorted({bisect_right(self._firsts, sample) - 1 for sample in samples}):
            yield from self._numbered(piece)

    def _numbered(self, piece: int) -> Iterator[Batch]:
        first = self._firsts[piece]
        for batch in self._batches(piece) if piece else self.head:
            yield replace(batch, samples=tuple(first + sample for sample in batch.samples))

    def _batches(self, piece: int) -> Batches:
        start, end = self._pieces[piece]
        texts = [text for block in range(start, end) if self._quota(block) for text in self.text.block(block)]
        asked = replace(self.sampling, samples=self._firsts[piece + 1] - self._firsts[piece])
        made = feed(self.loaded, Corpus.of(self.text.name, texts), asked)
        return replace(made, sha256=self.text.sha256)
