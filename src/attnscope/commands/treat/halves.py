"""Split a corpus into batches for training and held-out batches, and compute the loss of each sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.words import count
from attnscope.data.batches import Batch, Batches
from attnscope.data.corpus import EVERY, Corpus, Split, held_out_places, split
from attnscope.data.read import read
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded, Ready, Text, batches_for
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.outputs import mask_token_of

FEWEST = 4  # held-out sequences: fewer give no useful interval
HIDDEN = 0.15  # share of the tokens that a masked model has to guess

GivenLoss = Callable[[nn.Module, Mapping[str, Any]], Tensor]
"""`loss(model, inputs)` -> one number for each sequence, for models that are not language models."""


@dataclass(frozen=True)
class Halves:
    name: str
    sha256: str
    training: Batches
    held_out: Batches
    text: Split | None = None  # the two halves as text, if the corpus is text
    notes: tuple[str, ...] = ()
    of_training: tuple[str, ...] = ()  # notes for remedies that train


def halves(loaded: Loaded, corpus: Text | Ready | None, sampling: Sampling, training: int) -> Halves:
    """Return at most `training` sequences to train on, and as many held-out sequences as `sampling` says."""
    source = corpus if isinstance(corpus, str | Path | Corpus | Batches | Mapping) or corpus is None else list(corpus)
    if isinstance(source, Batches | Mapping) or (
        isinstance(source, list) and source and isinstance(source[0], Mapping)
    ):
        return _ready(loaded, source, sampling)
    if loaded.tokenizer is None and loaded.reads_text:
        raise RefusalError(
            f"{loaded.name} has no tokenizer, and a loss needs real text: add tokenizer.json to it, or in Python pass "
            "tokenizer= or ready batches."
        )
    text = source if isinstance(source, Corpus) else read(cast(Text | None, source), field=sampling.field)
    cut = split(text)
    spread = replace(sampling, spread=True)  # everything is judged over documents
    train = feed(loaded, cut.training, replace(spread, samples=training))
    held_out = feed(loaded, cut.held_out, spread)
    _refuse_few(held_out.samples, text.name)
    repeats = (
        f"The corpus has only {count(train.samples, 'sequence')} to train on, and training reads {training}: each is "
        f"read about {training / train.samples:.1f} times.",
    )
    notes = (*held_out.notes, *([cut.note] if cut.note else []))
    of_training = repeats if train.samples < training else ()
    return Halves(text.name, text.sha256, train, held_out, cut, notes, of_training)


def _ready(loaded: Loaded, batches: Any, sampling: Sampling) -> Halves:
    """Hold out every fifth batch, or every fifth document if the batches name documents."""
    prepared = batches_for(loaded, batches, sampling)
    documents = prepared.documents
    if documents and len(set(documents)) > 1 and not any(batch.undivided for batch in prepared):
        names = sorted(set(documents))
        out = {names[index] for index in held_out_places(len(names))}
        train, held_out = _by_document(prepared, lambda number: documents[number] not in out)
    elif len(prepared.batches) < 2:
        raise RefusalError("One batch cannot be split: give several, some to train on and some to measure on.")
    else:
        every = min(EVERY, len(prepared.batches))
        held_out = [batch for number, batch in enumerate(prepared.batches) if number % every == every - 1]
        train = [batch for number, batch in enumerate(prepared.batches) if number % every != every - 1]
    cut_from = tuple(documents[number] for batch in held_out for number in batch.samples) if documents else ()
    measured = replace(prepared, batches=tuple(_renumbered(held_out)), documents=cut_from)
    _refuse_few(measured.samples, prepared.name)
    return Halves(prepared.name, prepared.sha256, replace(prepared, batches=tuple(train)), measured)


def two_parts(text: Batches, most: int) -> tuple[Batches, Batches]:
    """Split a text into two parts of at most `most` sequences each that share no document.

    Every second document belongs to the second part. A single document is cut in the middle.
    """
    numbers = in_turns(text)
    names = sorted({text.documents[number] for number in numbers}) if text.documents else sorted(numbers)
    second = set(names[1::2])
    late = {number for number in numbers if (text.documents[number] if text.documents else number) in second}
    if len(names) == 1:
        late = set(numbers[(len(numbers) + 1) // 2 :])
    parts = ([n for n in numbers if n not in late], [n for n in numbers if n in late])
    made = [_by_document(text, set(part[:most]).__contains__)[0] for part in parts]
    if not all(made):
        raise RefusalError("The corpus has one sequence to choose heads on, and two are needed: give more text.")
    return replace(text, batches=tuple(made[0])), replace(text, batches=tuple(made[1]))


def in_turns(text: Batches) -> list[int]:
    """Return the numbers of all sequences: the first sequence of every document, then the second of every one, ..."""
    turns: dict[int, int] = {}
    by_turn = []
    for number in sorted(number for batch in text for number in batch.samples):
        document = text.documents[number] if text.documents else number
        turns[document] = turns.get(document, 0) + 1
        by_turn.append((turns[document], number))
    return [number for _, number in sorted(by_turn)]


def _by_document(prepared: Batches, trained_on: Callable[[int], bool]) -> tuple[list[Batch], list[Batch]]:
    """Split the sequences of every batch into training and held-out ones by their numbers."""
    train: list[Batch] = []
    held_out: list[Batch] = []
    for batch in prepared:
        for half, wanted in ((train, True), (held_out, False)):
            if rows := [row for row, number in enumerate(batch.samples) if trained_on(number) is wanted]:
                half.append(batch.rows(rows))
    return train, held_out


def _renumbered(batches: Iterable[Batch]) -> Iterable[Batch]:
    """Number sequences from 0, as a survey does."""
    first = 0
    for batch in batches:
        yield replace(batch, samples=tuple(range(first, first + len(batch))))
        first += len(batch)


def _refuse_few(held_out: int, name: str) -> None:
    if held_out < FEWEST:
        raise RefusalError(
            f"The corpus {name} is too small to hold out {FEWEST} sequences (it has {held_out}), which intervals need: "
            "give more text, or a smaller `max_tokens=`."
        )


@dataclass(frozen=True)
class SequenceLoss:
    """Callable that returns the mean loss of every sequence of a batch, in nats per token.

    A causal model predicts every token from those before it, and so does the decoder of an encoder-decoder. A masked
    model predicts a share of tokens, all replaced by the mask token (arXiv:1810.04805). The choice of tokens depends
    only on the sequence and the seed, so all arms of a treatment predict the same tokens.
    """

    loaded: Loaded
    seed: int = 0
    given: GivenLoss | None = None
    skip_first: int = 0  # tokens at the start of a sequence that are not predicted

    def __call__(self, batch: Batch) -> Float[Tensor, " batch"]:
        if self.given is not None:
            return self._checked(self.given(self.loaded.model, batch.inputs), len(batch))
        inputs, targets, counts = self._targets(batch)
        options = {"use_cache": False} if "use_cache" in self.loaded.accepts else {}
        logits = getattr(self.loaded.model(**inputs, **options), "logits", None)
        self._refuse_without_logits(logits, targets)
        assert isinstance(logits, Tensor)
        if self.loaded.kind != "masked":
            logits = logits[:, :-1]
        each = nn.functional.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none")
        return (each * counts).sum(dim=1) / counts.sum(dim=1).clamp_min(1)

    def _targets(self, batch: Batch) -> tuple[dict[str, Any], Int[Tensor, "batch token"], Bool[Tensor, "batch token"]]:
        """Return the inputs, the tokens to predict, and which of them count."""
        inputs = dict(batch.inputs)
        if self.loaded.kind == "masked":
            hidden = self._hidden(batch)
            ids = inputs["input_ids"]
            inputs["input_ids"] = ids.masked_fill(hidden, self._mask_token())
            return inputs, ids, hidden
        own = self.loaded.kind == "encoder-decoder"
        ids = inputs["decoder_input_ids" if own else "input_ids"]
        mask = batch.decoder_mask if own else batch.mask
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(ids.device)
        counts = real[:, 1:] & real[:, :-1]
        if self.skip_first:
            counts = counts & (counts.cumsum(dim=1) > self.skip_first)
        return inputs, ids[:, 1:], counts

    def _hidden(self, batch: Batch) -> Bool[Tensor, "batch token"]:
        ids = batch.inputs["input_ids"]
        rows = []
        for row, number in enumerate(batch.samples):
            draw = torch.Generator().manual_seed((self.seed << 31) + number)
            chosen = torch.zeros(ids.shape[1], dtype=torch.bool)
            real = torch.arange(ids.shape[1]) if batch.mask is None else batch.mask[row].cpu().nonzero().flatten()
            inner = real[1:-1] if len(real) > 2 else real  # the first and last token are special
            order = torch.randperm(len(inner), generator=draw)
            chosen[inner[order[: max(1, round(HIDDEN * len(inner)))]]] = True
            rows.append(chosen)
        return torch.stack(rows).to(ids.device)

    def _mask_token(self) -> int:
        token = mask_token_of(self.loaded.tokenizer)
        if token is None:
            raise RefusalError(
                f"{self.loaded.name} ({self.loaded.class_name}) is a masked model and its tokenizer has no mask token, "
                "so there are no tokens to predict: in Python, pass loss=."
            )
        return token

    def _refuse_without_logits(self, logits: object, targets: Tensor) -> None:
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[-1] <= int(targets.max()):
            raise RefusalError(
                f"{self.loaded.name} ({self.loaded.class_name}) predicts no tokens, so it has no loss on a text: give "
                "a language model, or in Python pass loss=, a function of model and inputs that returns one number for "
                "each sequence."
            )

    def _checked(self, losses: object, sequences: int) -> Float[Tensor, " batch"]:
        if not isinstance(losses, Tensor) or losses.shape != (sequences,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise RefusalError(f"loss= returned {shape} for {sequences} sequences: return one number for each of them.")
        return losses
