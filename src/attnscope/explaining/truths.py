"""Texts with their true classes, as batches of one: each is the beginning of its document."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnscope.core.errors import RefusalError
from attnscope.corpus.corpus import Corpus
from attnscope.corpus.labelled import Class, labelled
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import Ready, Text
from attnscope.hf.loading.options import Sampling
from attnscope.trace.batches import Batches


def batches_with_truths(
    loaded: Loaded,
    source: Corpus | Text | Ready | None,
    labels: str | Sequence[Class],
    sampling: Sampling,
) -> tuple[Batches, tuple[Class, ...]]:
    """Batches of one sequence, and the class of each. Documents are drawn with the seed of `sampling`; a class is of a
    whole document, so of each the first tokens are taken, and no other window."""
    if source is None or isinstance(source, Corpus | Batches | Mapping):
        raise RefusalError("Labels need texts of their own: give a .jsonl file with a field of classes, or a list.")
    corpus, classes = labelled(source, labels, sampling.field)
    numbers = list(range(len(corpus.documents)))
    if sampling.samples is not None and sampling.samples < len(numbers):
        numbers = sorted(random.Random(sampling.seed).sample(numbers, sampling.samples))
    chosen = Corpus.of(corpus.name, [corpus.documents[n] for n in numbers])
    fed = feed(loaded, chosen, replace(sampling, samples=None, batch_size=1))
    first: dict[int, int] = {}
    for sample, document in enumerate(fed.documents):
        first.setdefault(document, sample)
    kept = [batch for batch in fed if first[fed.documents[batch.samples[0]]] == batch.samples[0]]
    truths = tuple(classes[numbers[fed.documents[batch.samples[0]]]] for batch in kept)
    return replace(fed, batches=tuple(kept)), truths
