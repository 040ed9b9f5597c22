"""Temperature: one number a head."""

import itertools

import torch

from attnscope.variants.temperature import pattern, temperature
from tests.variants.calls import heads, inputs, softmax


def test_logits_are_divided() -> None:
    query, key, value = heads()
    found = temperature(inputs(query, key, value), temperature=torch.tensor([2.0, 0.25]))
    torch.testing.assert_close(found[:, 0], (softmax(query, key, scale=0.25) @ value)[:, 0])
    torch.testing.assert_close(found[:, 1], (softmax(query, key, scale=2.0) @ value)[:, 1])


def test_entropy_rises_with_temperature() -> None:
    query, key, _ = heads()
    entropies = []
    for degrees in (0.1, 1.0, 10.0, 1e9):
        rows = pattern(inputs(query, key), temperature=torch.full((2,), degrees, dtype=torch.float64))
        entropies.append(-(rows * rows.log()).sum(-1).mean())
    assert all(a < b for a, b in itertools.pairwise(entropies))
    torch.testing.assert_close(entropies[-1].exp(), torch.tensor(9.0, dtype=torch.float64))
