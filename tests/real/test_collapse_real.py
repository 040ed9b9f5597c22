"""The paper's claim on pretrained weights: attention alone collapses, the whole model does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.commands.collapse.run import collapse

pytestmark = pytest.mark.real


def test_a_trained_bert_of_twelve_layers(material: Callable[[str], Path]) -> None:
    found = collapse(material("rxnfp"), allow_pickle=True, samples=4, max_tokens=64, bound_samples=1)
    assert found.layers == 12
    assert found.curves["san"].mean[-1] < 1e-3
    assert min(found.curves["whole"].mean) > 0.1
    assert found.curves["san"].mean[0] == found.curves["whole"].mean[0]
    assert sum(row.violations for rows in (found.bounds, found.skip_bounds) for row in rows) == 0
    assert len(found.bounds) == len(found.skip_bounds) == 12
    assert all(row.cubic is not None for row in found.bounds)  # plain logits, recognised as such


def test_a_trained_bert_of_six_layers(material: Callable[[str], Path]) -> None:
    found = collapse(material("minilm"), samples=4, max_tokens=48, variants="san,whole", bound_samples=1)
    assert found.curves["san"].mean[-1] < 0.2 * found.curves["whole"].mean[-1]
    assert min(found.curves["whole"].mean) > 0.1
    assert len(found.bounds) == 6
    assert sum(row.violations for row in found.bounds) == 0
