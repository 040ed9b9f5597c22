"""`update_ratio`: a weight that doubled, one that stayed, one that was zero."""

from __future__ import annotations

import torch

from attnscope.measures.update_ratio import update_ratio


def test_of_known_updates() -> None:
    weight = torch.arange(1.0, 7.0).view(2, 3)
    now = {"query": 2 * weight, "key": weight, "value": weight, "output": weight}
    before = {"query": weight, "key": weight, "value": 0 * weight}
    found = update_ratio(weight=now, weight_before=before)
    assert float(found["query"].value) == 1.0
    assert float(found["key"].value) == 0.0
    assert bool(found["value"].value.isnan())
    assert bool(found["output"].value.isnan())
