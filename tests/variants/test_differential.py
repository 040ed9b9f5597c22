"""Differential attention: what both patterns see cancels."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.differential import differential
from tests.variants.calls import heads, inputs, softmax


def test_two_equal_patterns_cancel() -> None:
    query, key, value = heads()
    begun = {name: one.double() for name, one in differential.start(Size(2, 4, 8)).items()}
    found = differential(inputs(query, key, value), **{**begun, "lambda_": torch.ones(2, dtype=torch.float64)})
    assert float(found.abs().max()) < 1e-14


def test_a_second_pattern_without_logits_is_the_mean() -> None:
    query, key, value = heads()
    begun = {name: one.double() for name, one in differential.start(Size(2, 4, 8)).items()}
    changed = {**begun, "second_query": 0 * begun["second_query"], "lambda_": torch.full((2,), 0.5)}
    expected = softmax(query, key) @ value - 0.5 * value.mean(-2, keepdim=True)
    torch.testing.assert_close(differential(inputs(query, key, value), **changed), expected)


def test_the_published_halves_are_a_choice_of_matrices() -> None:
    """Heads of twice the width: q and k hold the first half, and the matrices select the second."""
    query, key, value = heads(dim=4)
    first, second = query.clone(), torch.zeros(2, 4, 4, dtype=torch.float64)
    second[:, [0, 1], [0, 1]] = 1.0
    share = torch.tensor([0.3, 0.6], dtype=torch.float64)
    found = differential(inputs(first, key, value), second_query=second, second_key=second, lambda_=share)
    half = softmax(query[..., :2], key[..., :2])
    torch.testing.assert_close(found, (softmax(query, key) - share[:, None, None] * half) @ value)
