"""The two halves of a corpus as batches: what is trained on, and what is held out and measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from attnscope.core.errors import RefusalError
from attnscope.core.words import count
from attnscope.corpus.corpus import Corpus
from attnscope.corpus.read import read
from attnscope.corpus.splitting import EVERY, Split, held_out_places, split
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import Ready, Text, batches_for
from attnscope.hf.loading.options import Sampling
from attnscope.trace.batches import Batch, Batches

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
            "are needed to tell a difference from chance. Give more text, or a smaller --max-tokens."
        )
