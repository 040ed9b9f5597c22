"""Paths of a real language model: which head brings the capital of Italy, exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.depth.paths import paths

pytestmark = pytest.mark.real


def test_smollm2_brings_italy_to_rome_through_one_head(material: Callable[[str], Path]) -> None:
    text = "The capital of France is Paris. The capital of Italy is"
    found = paths(material("smollm2"), text, target=" Rome", draws=0, mlp=False, top=3)
    assert found.difference < 1e-10
    assert found.linear_difference < 1e-10
    assert found.lengths[-1].up_to.predicted == " Rome"
    assert len(found.lengths) == 31
    # Nearly all of it comes from short paths, of which there are few: 35,506 of 1e30.
    short = sum(row.value for row in found.lengths[:3])
    assert short == pytest.approx(found.value, rel=0.1)
    values = {(layer, head): v for layer, row in enumerate(found.head_values) for head, v in enumerate(row)}
    assert max(values, key=lambda place: values[place]) == (23, 4)
    first = found.top[0]
    assert (first.token, first.heads) == (" Italy", ((23, 4),))
    assert found.lengths[1].without.predicted != " Rome"
