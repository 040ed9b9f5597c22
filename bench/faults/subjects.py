"""The real models of the benchmark, with text of their own kind. `HALVES` says which ones thresholds were set on."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from attnscope.hf.loading.load import Loaded, load
from tools.fetch_models import path as weights
from tools.fetch_models import ROOT, unquantised


@dataclass(frozen=True)
class Subject:
    """A model, a text, and another text of the same kind."""

    loaded: Loaded
    text: Any
    other_text: Any
    options: Mapping[str, Any] = field(default_factory=dict)  # of the scan


def smollm2() -> Subject:
    with gzip.open(weights("wikitext2") / "test.raw.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    book = (weights("gutenberg") / "austen-emma.txt").read_text(encoding="utf-8")
    return Subject(load(unquantised("smollm2")), [text], [book])


def minimind2() -> Subject:
    """MiniMind2-Small, a Llama that chats in Chinese and English."""
    with gzip.open(weights("wikitext2") / "test.raw.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    book = (weights("gutenberg") / "austen-emma.txt").read_text(encoding="utf-8")
    return Subject(load(ATLAS / "minimind2-small"), [text], [book])


def microformer() -> Subject:
    """Sequences drawn from the model itself, since it reads the names of microbes."""
    loaded = load(weights("microformer"), allow_pickle=True)
    return Subject(loaded, _drawn(loaded, 0), _drawn(loaded, 1))


def _drawn(loaded: Loaded, seed: int, sequences: int = 64, tokens: int = 64) -> list[dict[str, torch.Tensor]]:
    model: Any = loaded.model
    torch.manual_seed(seed)
    start = torch.full((sequences, 1), loaded.bos if loaded.bos is not None else 1)
    ids = model.generate(start, max_new_tokens=tokens - 1, min_new_tokens=tokens - 1, do_sample=True, top_k=0)
    return [{"input_ids": part} for part in ids.split(8)]


ATLAS = ROOT / ".weights" / "atlas"
SUBJECTS: dict[str, Callable[[], Subject]] = {"smollm2": smollm2, "minimind2": minimind2}
