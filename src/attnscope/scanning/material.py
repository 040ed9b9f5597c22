"""What a scan runs on: a loaded model and batches it can read, from whatever the caller gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.corpus.read import read
from attnscope.hf.in_memory import in_memory
from attnscope.hf.load import Loaded, load
from attnscope.trace.batches import Batches, batches
from attnscope.trace.windows import Tokenizer, random_windows, windows

_READS_TEXT = ("causal", "masked", "encoder-decoder")
Text = str | Path | Sequence[str]
Ready = Batches | Sequence[Mapping[str, Any]]


def loaded_model(model: str | Path | nn.Module | Loaded, tokenizer: Tokenizer | None, **options: Any) -> Loaded:
    """Load a model by name, or take one that is already in memory, as it is."""
    if isinstance(model, Loaded):
        return model
    if isinstance(model, nn.Module):
        return in_memory(model, tokenizer)
    return load(str(model), **options)


def batches_for(
    loaded: Loaded,
    corpus: Text | Ready | None,
    *,
    field: str,
    samples: int,
    max_tokens: int | None,
    batch_size: int,
    seed: int,
) -> Batches:
    """Ready batches as they are; text cut into windows; random tokens where a model has no tokenizer and no text."""
    if isinstance(corpus, Batches):
        return corpus
    if _holds_mappings(corpus):
        return Batches.of(corpus)  # type: ignore[arg-type]
    if loaded.kind not in _READS_TEXT:
        raise RefusalError(
            f"{loaded.class_name} is a {loaded.kind} model, which text alone cannot feed: call "
            "attnscope.scan(model, [{'pixel_values': ...}]) from Python with batches of your own."
        )
    if loaded.tokenizer is not None:
        text = read(corpus, field=field)  # type: ignore[arg-type]
        found = windows(
            text,
            loaded.tokenizer,
            max_tokens=max_tokens,
            positions=loaded.positions,
            vocab_size=loaded.vocab_size,
            samples=samples,
            seed=seed,
        )
    elif corpus is None and loaded.vocab_size is not None:
        found = random_windows(
            loaded.vocab_size, max_tokens=max_tokens, positions=loaded.positions, samples=samples, seed=seed,
            first=loaded.bos,
        )
    else:
        raise RefusalError(
            f"{loaded.name} has no tokenizer, so it cannot read text: put tokenizer.json beside its config, "
            "pass tokenizer= in Python, or leave the corpus out to scan on random tokens."
        )
    return batches(
        found,
        batch_size=batch_size,
        pad=loaded.pad,
        decoder_start=loaded.decoder_start,
        accepts=loaded.accepts,
    )


def _holds_mappings(corpus: object) -> bool:
    return isinstance(corpus, Sequence) and not isinstance(corpus, str) and isinstance(next(iter(corpus), None), Mapping)


def forward_options(loaded: Loaded) -> dict[str, Any]:
    """No cache is kept, and language models project only the last token to their vocabulary: scans read neither."""
    wished = {"use_cache": False, "logits_to_keep": 1}
    return {name: value for name, value in wished.items() if name in loaded.accepts}


def names_of(measures: str | Iterable[str]) -> list[str]:
    """Measure words from a list or a comma-separated string."""
    words = measures.split(",") if isinstance(measures, str) else list(measures)
    return [word.strip() for word in words if word.strip()]
