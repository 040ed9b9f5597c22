"""Fastmax of order 1 (arXiv:2402.07901): equal to its dense form, and positive only where x is bounded."""

import pytest
import torch

from attnscope.variants.fastmax1 import fastmax1, pattern
from tests.variants.calls import heads, inputs, noise


@pytest.mark.parametrize("causal", [False, True])
def test_the_factorised_form_is_the_dense_one_to_rounding(causal: bool) -> None:
    query, key, value = heads(tokens=64, dim=16)
    given = inputs(query, key, value, causal=causal)
    assert float((fastmax1(given) - pattern(given) @ value).abs().max()) < 3e-15


def test_by_the_formula() -> None:
    query, key, value = heads()
    a, b = (one - one.mean(-1, keepdim=True) for one in (query, key))
    kernel = 1 + (a @ b.mT) / (a.norm(dim=-1)[..., None] * b.norm(dim=-1)[..., None, :])
    torch.testing.assert_close(fastmax1(inputs(query, key, value)), kernel / kernel.sum(-1, keepdim=True) @ value)


def test_bounded_products_give_no_negative_weight_and_unbounded_ones_many() -> None:
    query, key, _ = heads(tokens=64, dim=16)
    assert bool((pattern(inputs(100 * query, key)) >= 0).all())
    raw = 1 + noise(0, 64, 20) @ noise(1, 64, 20).mT
    assert float((raw < 0).double().mean()) == pytest.approx(0.41, abs=0.03)
