"""The real models of the benchmark, with text of their own kind. `judge.py` says which ones thresholds were set on."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnscope.hf.loading.load import Loaded, load
from tools.fetch_models import ROOT, unquantised
from tools.fetch_models import path as weights


@dataclass(frozen=True)
class Subject:
    """A model, a text, and another text of the same kind."""

    loaded: Loaded
    text: Any
    other_text: Any
    options: Mapping[str, Any] = field(default_factory=dict)  # of the scan


FEWER = {"samples": 16}  # of models that take half a minute a case


def smollm2() -> Subject:
    with gzip.open(weights("wikitext2") / "test.raw.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    book = (weights("gutenberg") / "austen-emma.txt").read_text(encoding="utf-8")
    return Subject(load(unquantised("smollm2")), [text], [book], FEWER)


def _sequences(model: str, corpus: str, **options: Any) -> Subject:
    """Return a model of the atlas that reads one sequence a line. The second half of the lines is the other text."""
    lines = [line for line in (ATLAS / "corpora" / f"{corpus}.txt").read_text(encoding="utf-8").splitlines() if line]
    random.Random(0).shuffle(lines)
    half = len(lines) // 2
    return Subject(load(ATLAS / model), lines[:half], lines[half:], {"max_tokens": 128, **options})  # whole sequences


def iglm() -> Subject:
    return _sequences("iglm", "heavy_chains")


def iglm_small() -> Subject:
    return _sequences("iglm-small", "heavy_chains")


def rxnfp() -> Subject:
    return _sequences("rxnfp-pretrained", "reactions")


def antiberty() -> Subject:
    return _sequences("antiberty", "antibodies", **FEWER)


def rxnmapper() -> Subject:
    return _sequences("rxnmapper", "reactions")


ATLAS = ROOT / ".weights" / "atlas"
SUBJECTS: dict[str, Callable[[], Subject]] = {
    "smollm2": smollm2,
    "iglm": iglm,
    "iglm_small": iglm_small,
    "rxnfp": rxnfp,
    "antiberty": antiberty,
    "rxnmapper": rxnmapper,
}
