"""The two halves of a corpus as batches: what is trained on, and what is held out and measured."""

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
from attnscope.hf.loading.batches import Ready, Text, batches_for
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.outputs import mask_token_of

FEWEST = 4  # held-out sequences: with fewer an interval says nothing


@dataclass(frozen=True)
class Halves:
    name: str
    sha256: str
    training: Batches
    held_out: Batches
    text: Split | None = None  # the two halves as text, where there is text
    notes: tuple[str, ...] = ()
    of_training: tuple[str, ...] = ()  # notes that are of interest where something is trained


def halves(loaded: Loaded, corpus: Text | Ready | None, sampling: Sampling, training: int) -> Halves:
    """`training` sequences to train on at most, and those of `sampling` held out."""
    things = corpus if isinstance(corpus, str | Path | Corpus | Batches | Mapping) or corpus is None else list(corpus)
    if isinstance(things, Batches | Mapping) or (
        isinstance(things, list) and things and isinstance(things[0], Mapping)
    ):
        return _ready(loaded, things, sampling)
    if loaded.tokenizer is None and loaded.reads_text:
        raise RefusalError(
            f"{loaded.name} has no tokenizer, and what a remedy does to random tokens says nothing: add tokenizer.json "
            "to it, or in Python pass tokenizer= or ready batches."
        )
    text = things if isinstance(things, Corpus) else read(cast(Text | None, things), field=sampling.field)
    cut = split(text)
    ours = feed(loaded, cut.training, replace(sampling, samples=training))
    theirs = feed(loaded, cut.held_out, sampling)
    _refuse_few(theirs.samples, text.name)
    notes = []
    if ours.samples < training:
        notes.append(
            f"The corpus has {count(ours.samples, 'sequence')} to train on, and training reads {training}: each is "
            f"read about {training / ours.samples:.1f} times."
        )
    said = (*theirs.notes, *([cut.note] if cut.note else []))
    return Halves(text.name, text.sha256, ours, theirs, cut, said, tuple(notes))


def _ready(loaded: Loaded, given: Any, sampling: Sampling) -> Halves:
    """Ready batches: every fifth is held out; where they say which document each sequence is from, whole documents."""
    prepared = batches_for(loaded, given, sampling)
    documents = prepared.documents
    if documents and len(set(documents)) > 1 and not any(batch.undivided for batch in prepared):
        names = sorted(set(documents))
        out = {names[place] for place in held_out_places(len(names))}
        ours, theirs = _by_document(prepared, lambda number: documents[number] not in out)
    elif len(prepared.batches) < 2:
        raise RefusalError("One batch cannot be split: give several, some to train on and some to measure on.")
    else:
        every = min(EVERY, len(prepared.batches))
        theirs = [batch for number, batch in enumerate(prepared.batches) if number % every == every - 1]
        ours = [batch for number, batch in enumerate(prepared.batches) if number % every != every - 1]
    cut_from = tuple(documents[number] for batch in theirs for number in batch.samples) if documents else ()
    held_out = replace(prepared, batches=tuple(_renumbered(theirs)), documents=cut_from)
    _refuse_few(held_out.samples, prepared.name)
    return Halves(prepared.name, prepared.sha256, replace(prepared, batches=tuple(ours)), held_out)


def _by_document(prepared: Batches, trained_on: Callable[[int], bool]) -> tuple[list[Batch], list[Batch]]:
    """The sequences of every batch in two, by their numbers."""
    ours: list[Batch] = []
    theirs: list[Batch] = []
    for batch in prepared:
        for half, wanted in ((ours, True), (theirs, False)):
            if rows := [place for place, number in enumerate(batch.samples) if trained_on(number) is wanted]:
                half.append(batch.rows(rows))
    return ours, theirs


def _renumbered(batches: Iterable[Any]) -> Iterable[Any]:
    """Sequences counted from 0: a survey counts them so."""
    first = 0
    for batch in batches:
        yield replace(batch, samples=tuple(range(first, first + len(batch))))
        first += len(batch)


def _refuse_few(held_out: int, name: str) -> None:
    if held_out < FEWEST:
        raise RefusalError(
            f"The corpus {name} is too small: {count(held_out, 'sequence')} can be held out of training, and {FEWEST} "
            "are needed to tell a difference from chance. Give more text, or a smaller `max_tokens=`."
        )


# What a language model loses on a batch: nats per token of each sequence, and which tokens count.
#
# A causal model predicts every token from those before it. A masked model predicts a share of its tokens that were
# hidden (arXiv:1810.04805; all of them behind the mask token); which ones depends on the sequence and the seed alone,
# so that every arm of a treatment is asked the same questions. A decoder behind an encoder predicts its own next
# token.

HIDDEN = 0.15  # share of the tokens that a masked model has to guess

GivenLoss = Callable[[nn.Module, Mapping[str, Any]], Tensor]
"""`loss(model, inputs)`, one number for each sequence: what a caller gives for models that are no language models."""


@dataclass(frozen=True)
class Losing:
    """How one model loses. Call it with a batch: the mean loss of every sequence, with gradients where they are on."""

    loaded: Loaded
    seed: int = 0
    given: GivenLoss | None = None
    skip_first: int = 0  # tokens at the beginning of a sequence that are not asked for

    def __call__(self, batch: Batch) -> Float[Tensor, " batch"]:
        if self.given is not None:
            return self._checked(self.given(self.loaded.model, batch.inputs), len(batch))
        inputs, wanted, counts = self._asked(batch)
        options = {"use_cache": False} if "use_cache" in self.loaded.accepts else {}
        logits = getattr(self.loaded.model(**inputs, **options), "logits", None)
        self._refuse_without_logits(logits, wanted)
        assert isinstance(logits, Tensor)
        if self.loaded.kind != "masked":
            logits = logits[:, :-1]
        each = nn.functional.cross_entropy(logits.transpose(1, 2).float(), wanted, reduction="none")
        return (each * counts).sum(dim=1) / counts.sum(dim=1).clamp_min(1)

    def _asked(self, batch: Batch) -> tuple[dict[str, Any], Int[Tensor, "batch token"], Bool[Tensor, "batch token"]]:
        """What the model is given, what it should say, and where that counts."""
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
        for place, number in enumerate(batch.samples):
            draw = torch.Generator().manual_seed((self.seed << 31) + number)
            length = ids.shape[1] if batch.mask is None else int(batch.mask[place].sum())
            chosen = torch.zeros(ids.shape[1], dtype=torch.bool)
            real = torch.arange(ids.shape[1]) if batch.mask is None else batch.mask[place].cpu().nonzero().flatten()
            inner = real[1:-1] if length > 2 else real  # what stands at the ends is no text
            order = torch.randperm(len(inner), generator=draw)
            chosen[inner[order[: max(1, round(HIDDEN * len(inner)))]]] = True
            rows.append(chosen)
        return torch.stack(rows).to(ids.device)

    def _mask_token(self) -> int:
        token = mask_token_of(self.loaded.tokenizer)
        if token is None:
            raise RefusalError(
                f"{self.loaded.name} ({self.loaded.class_name}) reads both ways and its tokenizer has no mask token, so"
                " there is nothing it could be asked: in Python, give loss=."
            )
        return token

    def _refuse_without_logits(self, logits: object, wanted: Tensor) -> None:
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[-1] <= int(wanted.max()):
            raise RefusalError(
                f"{self.loaded.name} ({self.loaded.class_name}) predicts no tokens, so it has no loss on a text: give "
                "a language model, or in Python a loss=(model, inputs) -> one number for each sequence."
            )

    def _checked(self, losses: object, sequences: int) -> Float[Tensor, " batch"]:
        if not isinstance(losses, Tensor) or losses.shape != (sequences,):
            told = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise RefusalError(f"loss= gave {told} for {sequences} sequences: give one number for each of them.")
        return losses
