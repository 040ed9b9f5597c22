"""`update_ratio`: a weight that doubled, one that stayed, one that left zero, one that stayed zero."""

import torch

from attnscope.measures.update_ratio import update_ratio


def test_of_known_updates() -> None:
    weight = torch.arange(1.0, 7.0).view(2, 3)
    now = {"query": 2 * weight, "key": weight, "value": weight, "output": 0 * weight}
    before = {"query": weight, "key": weight, "value": 0 * weight, "output": 0 * weight}
    found = update_ratio(weight=now, weight_before=before)
    assert float(found["query"].value) == 1.0
    assert float(found["key"].value) == 0.0
    assert bool(found["value"].value.isnan())
    assert float(found["output"].value) == 0.0


def test_a_projection_that_is_not_known_has_no_number() -> None:
    found = update_ratio(weight={"query": torch.ones(2, 2)}, weight_before={"query": torch.ones(2, 2)})
    assert bool(found["key"].value.isnan())


def test_weights_that_become_nan_have_no_number() -> None:
    found = update_ratio(weight={"query": torch.full((2, 2), torch.nan)}, weight_before={"query": torch.ones(2, 2)})
    assert bool(found["query"].value.isnan())
