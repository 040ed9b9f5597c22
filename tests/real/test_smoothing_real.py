"""Over-smoothing in a trained encoder: tokens grow alike with depth, and its layers weighed alike are less so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.papers.trials.smoothing import of_model

pytestmark = pytest.mark.real


def test_tokens_of_minilm_grow_alike_and_its_layers_fused_are_less_so(material: Callable[[str], Path]) -> None:
    """As measured: .09 at the embedding, .27 behind the last layer; fused .19 by equal weights, .48 by max."""
    found = of_model(str(material("minilm")), 2, 48, 0)
    similarity, fused = found["similarity"], found["fused"]
    assert len(similarity) == 7
    assert similarity[-1] > similarity[0] + 0.1
    assert fused["gate"] < fused["last"] - 0.03
    assert fused["max"] > fused["last"], "max moves all tokens the same way"
