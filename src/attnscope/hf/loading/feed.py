"""feed(loaded, corpus) -> Batches: cut and pad a corpus for a loaded model."""

from __future__ import annotations

import hashlib
import json
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch, Batches, batches
from attnscope.data.corpus import Corpus
from attnscope.data.read import Gallery, read
from attnscope.data.sequences import pair_windows, repeated_windows
from attnscope.data.shards import MOST_SHARDS, SHARD_TOKENS
from attnscope.data.stream import Stream
from attnscope.data.windows import random_windows, window_length, windows
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.one_input import reading_of
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.targets import beginning_of, with_targets


def media_batches(loaded: Loaded, files: Gallery, sampling: Sampling) -> Batches:
    """Return batches of pictures or sounds; files of one shape share a batch."""
    if sampling.batch_size < 1:
        raise RefusalError(f"A batch of {sampling.batch_size} sequences is empty: pass `batch_size=1` or more.")
    readings = [
        reading_of(loaded, file, sampling.bos, what="Corpora") for file in files.drawn(sampling.samples, sampling.seed)
    ]
    # Notes on what a decoder wrote belong to one sound each; notes on how files are read are the same for all.
    every_note = dict.fromkeys(note for reading in readings for note in reading.notes)
    notes = () if loaded.decoder_start is not None else tuple(every_note)
    made = Batches.of(_together([dict(reading.batch) for reading in readings], sampling.batch_size), files.name)
    return Batches(made.name, made.sha256, made.batches, notes=notes)


def _together(inputs: list[dict[str, Tensor]], batch_size: int) -> Iterator[dict[str, Tensor]]:
    """Group consecutive inputs of one shape, at most `batch_size` in a group."""
    group: list[dict[str, Tensor]] = []
    for item in inputs:
        if group and (len(group) == batch_size or _shapes(item) != _shapes(group[0])):
            yield {name: torch.cat([member[name] for member in group]) for name in group[0]}
            group = []
        group.append(item)
    if group:
        yield {name: torch.cat([member[name] for member in group]) for name in group[0]}


def _shapes(inputs: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in inputs.items()}


SAMPLES = 64  # default number of random sequences


def feed(loaded: Loaded, corpus: Corpus | None, sampling: Sampling) -> Batches:
    """Return batches of the corpus; the default is the embedded text.

    A model without a tokenizer reads random tokens, and the name of the batches says so.
    """
    if not loaded.reads_text:
        raise RefusalError(
            f"{loaded.name} ({loaded.class_name}) cannot read text alone: in Python, give batches with the arguments "
            'of its forward, such as [{"pixel_values": images}] or [{"input_features": sound}].'
        )
    beginning = beginning_of(loaded, sampling.bos)
    notes: tuple[str, ...] = ()
    if corpus is not None and corpus.drawn:
        sequences = repeated_windows(
            _ordinary_tokens(loaded),
            max_tokens=sampling.max_tokens,
            positions=loaded.positions,
            samples=SAMPLES if sampling.samples is None else sampling.samples,
            seed=sampling.seed,
            first=beginning.token if beginning.begins else None,
        )
    elif loaded.tokenizer is not None:
        text = read() if corpus is None else corpus
        cutting: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "positions": loaded.positions,
            "vocab_size": loaded.vocab_size,
            "samples": sampling.samples,
            "seed": sampling.seed,
            "beginning": beginning,
        }
        if text.targets is None:
            sequences = windows(text, loaded.tokenizer, short=sampling.short, spread=sampling.spread, **cutting)
        else:
            _refuse_pairs_without_a_decoder(loaded, text)
            sequences, notes = pair_windows(text, loaded.tokenizer, **cutting)
    elif corpus is None and loaded.vocab_size:
        sequences = random_windows(
            loaded.vocab_size,
            max_tokens=sampling.max_tokens,
            positions=loaded.positions,
            samples=SAMPLES if sampling.samples is None else sampling.samples,
            seed=sampling.seed,
            first=beginning.token if beginning.begins else None,
        )
        if "treated" in loaded.provenance:
            notes = (
                f"{loaded.name} was saved without its tokenizer and read random tokens, not the text it was treated "
                "on: save it again with attnscope.save_treated(model, folder, tokenizer=...).",
            )
    else:
        raise RefusalError(
            f"{loaded.name} has no tokenizer, so it cannot read a corpus: add tokenizer.json to its folder (in "
            "Python pass tokenizer=), or leave the corpus out to scan it on random tokens."
        )
    if loaded.decoder_start is not None:
        sequences, target_note = with_targets(loaded, sequences, sampling.batch_size, sampling.seed)
        notes = (target_note, *notes)
    made = batches(
        sequences,
        batch_size=sampling.batch_size,
        pad=_known(loaded.pad, loaded),
        decoder_start=None if loaded.decoder_start is None else _known(loaded.decoder_start, loaded) or 0,
        accepts=loaded.accepts,
    )
    return replace(made, beginning=beginning, notes=notes)


def _ordinary_tokens(loaded: Loaded) -> list[int]:
    """Return the tokens that both the model and the tokenizer have, without special tokens."""
    known = [size for size in (loaded.vocab_size, _length(loaded.tokenizer)) if size]
    if not known:
        raise RefusalError(f"The vocabulary size of {loaded.name} is unknown: give ready batches in Python.")
    special = set(getattr(loaded.tokenizer, "all_special_ids", ()))
    return [token for token in range(min(known)) if token not in special]


def _length(tokenizer: Any) -> int | None:
    return len(tokenizer) if hasattr(type(tokenizer), "__len__") else None


def _refuse_pairs_without_a_decoder(loaded: Loaded, pairs: Corpus) -> None:
    if loaded.decoder_start is None:
        raise RefusalError(
            f"{pairs.name} holds pairs of source and target, and {loaded.name} ({loaded.class_name}) reads one text: "
            "give texts, or choose one side of a .jsonl file with `field='source'`."
        )


def _known(token: int | None, loaded: Loaded) -> int | None:
    """Return a token if the model's vocabulary has it, else None: a reduced vocabulary may lack special tokens."""
    return token if token is None or loaded.vocab_size is None or token < loaded.vocab_size else None


# Shards of a corpus that is larger than memory: each is read when it is needed, and not kept.
#
# The N requested sequences are a systematic sample of blocks of text, by length. Let C be the number of characters in
# the corpus, c(k) the number in its first k blocks, and r a random number below C, drawn from the seed. The first k
# blocks give g(k) = (c(k) N + r) // C sequences, and the next block gives g(k + 1) - g(k). This makes N sequences in
# total, spread over the whole corpus. Blocks that give none are not read. On average over r, a block gives
# (c(k + 1) - c(k)) N / C sequences: every stretch of text has the same chance, whatever the length of its document.
#
# Consecutive blocks form a piece with about `SHARD_TOKENS` tokens. The sequences of a piece are drawn, sorted and
# padded like those of a small corpus. A shard is one piece, or several consecutive pieces if there would be more than
# `MOST_SHARDS` shards: a billion tokens are 30,518 shards of four pieces. The content of a shard depends only on the
# corpus and the options.


@dataclass(frozen=True)
class Streamed:
    loaded: Loaded
    text: Stream
    sampling: Sampling

    @cached_property
    def _pieces(self) -> tuple[tuple[int, int], ...]:
        """Return (first block, block after the last) of each piece."""
        length = window_length(self.sampling.max_tokens, self.loaded.positions)
        enough = max(1, -(-SHARD_TOKENS // length))
        bounds: list[tuple[int, int]] = []
        start = sequences = 0
        for block in range(len(self.text)):
            sequences += self._quota(block)
            if sequences >= enough:
                bounds.append((start, block + 1))
                start, sequences = block + 1, 0
        if start < len(self.text):  # the remaining blocks are too short for a piece: add them to the last one
            bounds[-1:] = [(bounds[-1][0] if bounds else 0, len(self.text))]
        return tuple(bounds)

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """Return the number of each piece's first sequence, and the total as the last entry."""
        return tuple(map(self._given, (0, *(end for _, end in self._pieces))))

    @cached_property
    def _shards(self) -> tuple[range, ...]:
        """Return the pieces of each shard."""
        together = -(-len(self._pieces) // MOST_SHARDS)
        whole = range(len(self._pieces))
        return tuple(whole[a : a + together] for a in range(0, len(whole), together))

    @cached_property
    def _offset(self) -> int:
        return random.Random(self.sampling.seed).randrange(self.text.characters(len(self.text)))

    def _given(self, blocks: int) -> int:
        """Return how many sequences the first blocks give."""
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
        """Return a hash of the first piece and of everything that determines the other pieces."""
        decides = [self.text.sha256, self.head.fingerprint(), self.sizes]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def shard(self, number: int) -> Iterator[Batch]:
        """Yield batches; one piece is in memory at a time."""
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
        sampling = replace(self.sampling, samples=self._firsts[piece + 1] - self._firsts[piece])
        made = feed(self.loaded, Corpus.of(self.text.name, texts), sampling)
        return replace(made, sha256=self.text.sha256)
