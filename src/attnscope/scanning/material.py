"""What a scan runs on: a loaded model and batches it can read, from whatever the caller gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.corpus.read import read
from attnscope.hf.feed import feed
from attnscope.hf.in_memory import in_memory
from attnscope.hf.load import Loaded, load
from attnscope.trace.batches import Batches
from attnscope.trace.windows import Tokenizer

Text = str | Path | Iterable[str]
Ready = Batches | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def loaded_model(model: str | Path | nn.Module | Loaded, tokenizer: Tokenizer | None, **options: Any) -> Loaded:
    """Load a model by name, or take one that is already in memory, as it is."""
    if isinstance(model, Loaded):
        return model
    if isinstance(model, nn.Module):
        return in_memory(model, tokenizer)
    return load(str(model), **options)


def batches_for(loaded: Loaded, corpus: Text | Ready | None, *, field: str = "text", **sizes: Any) -> Batches:
    """Ready batches as they are; text read, and cut to `sizes` (samples, max_tokens, batch_size, seed)."""
    if isinstance(corpus, Batches):
        return corpus
    if isinstance(corpus, Mapping):
        return Batches.of([corpus])
    if corpus is None or isinstance(corpus, str | Path):
        return feed(loaded, None if corpus is None else read(corpus, field=field), **sizes)
    things: list[Any] = list(corpus)
    if things and isinstance(things[0], Mapping):
        return Batches.of(things)
    return feed(loaded, read(things), **sizes)


def forward_options(loaded: Loaded) -> dict[str, Any]:
    """No cache is kept, and language models project only the last token to their vocabulary: scans read neither."""
    wished = {"use_cache": False, "logits_to_keep": 1}
    return {name: value for name, value in wished.items() if name in loaded.accepts}


def names_of(measures: str | Iterable[str]) -> list[str]:
    """Measure words from a list or a comma-separated string."""
    words = measures.split(",") if isinstance(measures, str) else list(measures)
    return [word.strip() for word in words if word.strip()]
