"""feed(loaded, corpus) -> Batches: what a loaded model reads, cut and padded the way it wants it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.corpus.corpus import Corpus
from attnscope.corpus.read import read
from attnscope.hf.loading.bos import beginning_of
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.targets import with_targets
from attnscope.trace.batches import Batches, batches
from attnscope.trace.pairs import pair_windows
from attnscope.trace.repeated import repeated_windows
from attnscope.trace.windows import random_windows, windows

SAMPLES = 64  # random sequences, where no number is asked for


def feed(loaded: Loaded, corpus: Corpus | None, sampling: Sampling) -> Batches:
    """Batches of the corpus, or of the embedded text where none is given.

    A model without a tokenizer reads random tokens, which the name of the batches says.
    """
    if not loaded.reads_text:
        raise RefusalError(
            f"{loaded.name} ({loaded.class_name}) does not read text alone: in Python, give batches of what its "
            'forward takes, such as [{"pixel_values": images}] or [{"input_features": sound}].'
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
        how: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "positions": loaded.positions,
            "vocab_size": loaded.vocab_size,
            "samples": sampling.samples,
            "seed": sampling.seed,
            "beginning": beginning,
        }
        if text.targets is None:
            sequences = windows(text, loaded.tokenizer, short=sampling.short, **how)
        else:
            _refuse_pairs_without_a_decoder(loaded, text)
            sequences, notes = pair_windows(text, loaded.tokenizer, **how)
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
                f"{loaded.name} was saved without its tokenizer and read random tokens, which say nothing of the text "
                "it was treated on: save it again with attnscope.save_treated(model, folder, tokenizer=...).",
            )
    else:
        raise RefusalError(
            f"{loaded.name} has no tokenizer, so it cannot read a corpus: add tokenizer.json to it (in "
            "Python pass tokenizer=), or leave the corpus out to scan it on random tokens."
        )
    if loaded.decoder_start is not None:
        sequences, said = with_targets(loaded, sequences, sampling.batch_size, sampling.seed)
        notes = (said, *notes)
    made = batches(
        sequences,
        batch_size=sampling.batch_size,
        pad=_known(loaded.pad, loaded),
        decoder_start=None if loaded.decoder_start is None else _known(loaded.decoder_start, loaded) or 0,
        accepts=loaded.accepts,
    )
    return replace(made, beginning=beginning, notes=notes)


def _ordinary_tokens(loaded: Loaded) -> list[int]:
    """What a text can be made of: tokens that model and tokenizer both know, without those that mark something."""
    known = [size for size in (loaded.vocab_size, _length(loaded.tokenizer)) if size]
    if not known:
        raise RefusalError(f"How many tokens {loaded.name} knows is not known: give ready batches in Python.")
    special = set(getattr(loaded.tokenizer, "all_special_ids", ()))
    return [token for token in range(min(known)) if token not in special]


def _length(tokenizer: Any) -> int | None:
    return len(tokenizer) if hasattr(type(tokenizer), "__len__") else None


def _refuse_pairs_without_a_decoder(loaded: Loaded, pairs: Corpus) -> None:
    if loaded.decoder_start is None:
        raise RefusalError(
            f"{pairs.name} holds pairs of source and target, and {loaded.name} ({loaded.class_name}) reads one text: "
            "give texts, or choose one side of a .jsonl file with --field source."
        )


def _known(token: int | None, loaded: Loaded) -> int | None:
    """A token of the tokenizer or configuration, if the model's vocabulary has it at all: shrunken ones may not."""
    return token if token is None or loaded.vocab_size is None or token < loaded.vocab_size else None
