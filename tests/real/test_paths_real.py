"""Paths of a real language model: which head brings the capital of Italy, exactly."""

from __future__ import annotations

import pytest

from attnscope.commands.paths.record import Goal, PathReport
from attnscope.commands.paths.run import paths
from tools.fetch_models import unquantised

pytestmark = pytest.mark.real


def test_smollm2_brings_italy_to_rome_through_one_head() -> None:
    text = "The capital of Italy is"
    found = paths(unquantised("smollm2"), text, target=" Rome", draws=0, mlp=False, top=2)
    assert PathReport.from_json(found.to_json()) == found  # with more paths than 64 bits count
    assert found.goal == Goal("logit", " Rome", where="after the last token")
    assert found.difference < 1e-10
    assert found.linear_difference < 1e-10
    assert found.lengths[-1].up_to.predicted == " Rome"
    assert len(found.lengths) == 31
    # More than four fifths of it come from paths through two heads or fewer, of which there are 35,506 among 1e30.
    assert sum(row.paths for row in found.lengths[:3]) == 35_506
    assert 0.8 * found.value < sum(row.value for row in found.lengths[:3]) < found.value
    values = {(layer, head): v for layer, row in enumerate(found.head_values) for head, v in enumerate(row)}
    assert max(values, key=lambda place: values[place]) == (23, 4)
    first = found.top[0]
    assert (first.token, first.heads) == (" Italy", ((23, 4),))
    assert found.lengths[1].without.predicted != " Rome"
