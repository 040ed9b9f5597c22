"""Batches of pictures or sounds, from files: each read as `explain` reads it, those of one shape together."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.corpus.gallery import Gallery
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_input import reading_of
from attnscope.hf.loading.options import Sampling
from attnscope.trace.batches import Batches


def shown(loaded: Loaded, files: Gallery, sampling: Sampling) -> Batches:
    """As many of the files as are asked for. What they were made of is said once, however many files there are."""
    if sampling.batch_size < 1:
        raise RefusalError(f"A batch of {sampling.batch_size} sequences is empty: pass --batch-size 1 or more.")
    read = [
        reading_of(loaded, file, sampling.bos, what="Corpora") for file in files.drawn(sampling.samples, sampling.seed)
    ]
    # What a decoder wrote of each sound is a note of that sound; how files are read is one of all, and said once.
    notes = () if loaded.decoder_start is not None else tuple(dict.fromkeys(note for one in read for note in one.notes))
    made = Batches.of(_together([dict(one.batch) for one in read], sampling.batch_size), files.name)
    return Batches(made.name, made.sha256, made.batches, notes=notes)


def _together(inputs: list[dict[str, Tensor]], batch_size: int) -> Iterator[dict[str, Tensor]]:
    """Neighbours of one shape, at most `batch_size` of them."""
    group: list[dict[str, Tensor]] = []
    for one in inputs:
        if group and (len(group) == batch_size or _shapes(one) != _shapes(group[0])):
            yield {name: torch.cat([each[name] for each in group]) for name in group[0]}
            group = []
        group.append(one)
    if group:
        yield {name: torch.cat([each[name] for each in group]) for name in group[0]}


def _shapes(inputs: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in inputs.items()}
