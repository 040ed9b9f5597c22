"""Shaped attention has three parts, and is the identity if all logits are equal."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.shaped import shaped
from tests.variants.calls import heads, inputs, softmax


def test_three_parts_with_a_weight_for_each_head() -> None:
    query, key, value = heads()
    weights = {
        name: torch.tensor(two) for name, two in {"alpha": [0.5, 0], "beta": [2.0, 1], "gamma": [0.25, 3]}.items()
    }
    found = shaped(inputs(query, key, value), **weights)
    mixed, mean = softmax(query, key) @ value, value.mean(-2, keepdim=True)
    torch.testing.assert_close(found[:, 0], (0.5 * value + 2 * mixed - 0.25 * mean)[:, 0])
    torch.testing.assert_close(found[:, 1], (mixed - 3 * mean)[:, 1])


def test_without_logits_all_ones_is_the_identity_with_and_without_a_mask() -> None:
    query, key, value = heads()
    ones = dict.fromkeys(("alpha", "beta", "gamma"), torch.ones(2, dtype=torch.float64))
    for causal in (False, True):
        torch.testing.assert_close(shaped(inputs(0 * query, key, value, causal=causal), **ones), value)


def test_the_start_is_one_number_of_each_kind_for_every_head() -> None:
    begun = shaped.start(Size(heads=3, dim=4, width=12))
    assert {name: one.tolist() for name, one in begun.items()} == {"alpha": [0] * 3, "beta": [1] * 3, "gamma": [0] * 3}
