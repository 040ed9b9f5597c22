"""`gradient_norm`: a gradient whose norm is known, and projections that were not recognised."""

import torch

from attnscope.measures.gradient_norm import gradient_norm


def test_of_a_known_gradient() -> None:
    three_four = torch.zeros(5, 4)
    three_four[0, 0], three_four[2, 1] = 3.0, 4.0
    found = gradient_norm(gradient={"query": three_four, "key": -2 * three_four, "value": 0 * three_four})
    assert [float(found[part].value) for part in ("query", "key", "value")] == [5.0, 10.0, 0.0]
    assert bool(found["output"].value.isnan())


def test_small_numbers_of_narrow_gradients_do_not_vanish() -> None:
    tiny = torch.full((100, 100), 1e-6, dtype=torch.float16)  # its square is below what float16 holds
    found = gradient_norm(gradient=dict.fromkeys(("query", "key", "value", "output"), tiny))
    assert float(found["query"].value) == torch.linalg.vector_norm(tiny.double()).float()
