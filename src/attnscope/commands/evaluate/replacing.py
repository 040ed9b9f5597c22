"""Choose what replaces a removed token, which tokens may be removed, and which texts are judged.

A vector that stands for no token (the mean of the vocabulary) takes a language model to inputs that it never saw: on
short prompts every removal then spoils the answer alike, and no method differs from another. So a language model draws
the replacement itself, from its distribution at that place given the text before it, without the token that stands
there and without special tokens. The first token has nothing before it and is drawn from the mean of these
distributions over the text. All methods get the same DRAWS replacements. A masked model has a token for the purpose,
the mask. Other models, and `replacement="neutral"`, use the neutral vector of `explain`.

Special tokens (BOS, [CLS], [SEP], the mask that is asked about) are never removed: they carry no content, and a model
without them reads another kind of text.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.commands.explain.running import Run, baseline_words
from attnscope.data.batches import Batches
from attnscope.data.corpus import Corpus
from attnscope.data.read import Gallery, read
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded, Ready, Text, batches_for, text_of
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.outputs import fills_masks, mask_token_of, word

Replacement = Literal["auto", "neutral"]
REPLACEMENTS: tuple[Replacement, ...] = ("auto", "neutral")
DRAWS = 2  # replacements drawn for every token
MASKING, APART = 2 * 6_364_136_223, 3 * 6_364_136_223  # added to a seed, as AWAY of soft erasure: other numbers each
DRAWN = "other tokens that the model itself finds likely in their place"

Vectors = dict[str, Float[Tensor, "token width"]]


def draws_tokens(one: Run, replacement: str) -> bool:
    """Return whether removed tokens are replaced by draws from the model."""
    ids = one.read.ids
    return (
        replacement == "auto"
        and one.loaded.kind == "causal"
        and ids is not None
        and [place.looks_up for place in one.places] == [True]
        and one.captured.output.ndim == 3
        and one.captured.output.shape[1] == len(ids)
        and one.captured.output.shape[2] > int(ids.max())
    )


def replacement_words(one: Run, replacement: str) -> str:
    return DRAWN if draws_tokens(one, replacement) else baseline_words(one.loaded, one.read)


@torch.no_grad()
def replacing_vectors(one: Run, replacement: str) -> list[Vectors]:
    """Return the vectors that replace tokens: DRAWS of them, or a single neutral one."""
    if not draws_tokens(one, replacement):
        return [one.baseline()]
    (place,) = one.places
    table = one.loaded.model.get_submodule(place.path)
    assert isinstance(table, nn.Embedding)
    ids = one.read.ids
    assert ids is not None
    drawn = drawn_tokens(one.captured.output[0], ids, _special(one.loaded), one.seed + APART)
    return [{place.stack: table.forward(row[None].to(table.weight.device))[0].detach()} for row in drawn]


def drawn_tokens(
    logits: Float[Tensor, "token vocabulary"], ids: Int[Tensor, " token"], special: list[int], seed: int
) -> Int[Tensor, "draw token"]:
    """Draw other tokens from the model's distribution at each place, given the text before it."""
    chances = logits.double().cpu().softmax(-1)
    chances = torch.cat([chances[:-1].mean(0, keepdim=True) if len(ids) > 1 else chances, chances[:-1]])
    chances[:, [token for token in special if token < chances.shape[1]]] = 0
    chances[torch.arange(len(ids)), ids.cpu()] = 0
    chances = chances + torch.finfo(torch.float64).tiny  # where the model was certain, any token will do
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(chances, DRAWS, replacement=True, generator=generator).mT


def removable(one: Run) -> dict[str, Bool[Tensor, " token"]]:
    """Return which tokens of each stack are not special."""
    special = torch.tensor(_special(one.loaded), dtype=torch.long)
    found = {}
    for place in one.places:
        vectors = one.captured.embedding[place.stack]
        found[place.stack] = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
        ids = one.read.batch.get(place.argument) if place.looks_up else None
        if isinstance(ids, Tensor) and ids.shape[-1] == len(vectors):
            found[place.stack] &= ~torch.isin(ids[0].cpu(), special).to(vectors.device)
            # Without a tokenizer, the configuration still says how sequences begin.
            if int(ids[0, 0]) in (one.loaded.bos, one.loaded.decoder_start) and len(vectors) > 1:
                found[place.stack][0] = False
    return found


def _special(loaded: Loaded) -> list[int]:
    return sorted(token for token in getattr(loaded.tokenizer, "all_special_ids", ()) if isinstance(token, int))


def masking_one(loaded: Loaded, read: Reading, seed: int) -> tuple[Reading, tuple[str, ...]]:
    """Mask one token if a masked language model reads a text without a mask."""
    mask = mask_token_of(loaded.tokenizer)
    if mask is None or read.ids is None or not fills_masks(loaded) or bool((read.ids == mask).any()):
        return read, ()
    special = set(getattr(loaded.tokenizer, "all_special_ids", ()))
    places = [place for place, token in enumerate(read.ids.tolist()) if token not in special]
    if not places:
        return read, ()
    # A seed that neither random explanations nor soft erasure use.
    drawn = torch.randint(len(places), (), generator=torch.Generator().manual_seed(seed + MASKING))
    ids = read.ids.clone()
    ids[places[int(drawn)]] = mask
    words = tuple(word(loaded.tokenizer, int(token)) for token in ids)
    note = "In every text one random token is masked, and the model's answer in its place is followed."
    return replace(read, batch={**read.batch, "input_ids": ids[None]}, ids=ids, words=words), (note,)


def texts_of(loaded: Loaded, corpus: Corpus | Text | Ready | None, sampling: Sampling) -> Batches:
    """Return batches of one sequence: the beginning of every document, or windows if there is a single document.

    If there are more documents than `samples`, that many are drawn.
    """
    given = corpus if isinstance(corpus, Corpus | Batches | Mapping) else text_of(corpus, sampling)
    if isinstance(given, Iterable) and not isinstance(given, Corpus | Gallery | Batches | Mapping | str):
        items: list[Any] = list(given)
        given = items if items and isinstance(items[0], Mapping) else read(items)
    if not isinstance(given, Corpus) or len(given.documents) < 2 or given.targets is not None:
        return batches_for(loaded, given, sampling)
    return beginnings(loaded, given, sampling)[0]


def beginnings(loaded: Loaded, corpus: Corpus, sampling: Sampling) -> tuple[Batches, tuple[int, ...]]:
    """Return the first window of every document, or of `samples` documents, and the number of each document."""
    numbers = list(range(len(corpus.documents)))
    if sampling.samples is not None and sampling.samples < len(numbers):
        numbers = sorted(random.Random(sampling.seed).sample(numbers, sampling.samples))
    chosen = Corpus.of(corpus.name, [corpus.documents[n] for n in numbers])
    fed = feed(loaded, chosen, replace(sampling, samples=None, batch_size=1))
    first: dict[int, int] = {}
    for sample, document in enumerate(fed.documents):
        first.setdefault(document, sample)
    kept = sorted((batch for batch in fed if batch.samples[0] in first.values()), key=lambda batch: batch.samples[0])
    return replace(fed, batches=tuple(kept)), tuple(numbers[fed.documents[batch.samples[0]]] for batch in kept)
