"""A share of the first block's values."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.value_residual import value_residual
from tests.variants.calls import noise


def test_values_are_mixed_by_two_shares_per_head() -> None:
    value, first = noise(0, 2, 5, 2, 3), noise(1, 2, 5, 2, 3)
    found = value_residual(value, first, own=torch.tensor([1.0, 0.5]), first=torch.tensor([0.0, 2.0]))
    assert torch.equal(found[..., 0, :], value[..., 0, :])
    torch.testing.assert_close(found[..., 1, :], 0.5 * value[..., 1, :] + 2 * first[..., 1, :])


def test_as_many_shares_as_there_are_heads_with_values() -> None:
    assert value_residual.start(Size(heads=6, dim=3, width=18, kv_heads=2))["own"].tolist() == [1, 1]
