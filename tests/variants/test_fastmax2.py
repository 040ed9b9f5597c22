"""Fastmax of order 2 (arXiv:2402.07901): equal to its dense form, and positive whatever the logits."""

import pytest
import torch

from attnscope.variants.fastmax2 import fastmax2, pattern
from tests.variants.calls import heads, inputs


@pytest.mark.parametrize("causal", [False, True])
def test_the_factorised_form_is_the_dense_one_to_rounding(causal: bool) -> None:
    query, key, value = heads(tokens=64, dim=16)
    given = inputs(query, key, value, causal=causal)
    assert float((fastmax2(given) - pattern(given) @ value).abs().max()) < 1e-14


def test_by_the_formula() -> None:
    query, key, value = heads()
    a, b = (
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() for x in (query, key)
    )
    product = 0.5 * a @ b.mT
    kernel = 1 + product + product**2 / 2
    assert float(kernel.min()) >= 0.5
    torch.testing.assert_close(fastmax2(inputs(query, key, value)), kernel / kernel.sum(-1, keepdim=True) @ value)


def test_no_weight_is_ever_negative_or_lost() -> None:
    query, key, _ = heads(tokens=32)
    rows = pattern(inputs(query, key, scale=30.0))
    assert bool((rows > 0).all())


def test_a_negative_scale_turns_queries_round() -> None:
    query, key, value = heads()
    turned = fastmax2(inputs(query, key, value, scale=-0.5))
    torch.testing.assert_close(turned, fastmax2(inputs(-query, key, value)))
