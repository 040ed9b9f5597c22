"""Layer scaling: 1 / sqrt(layer)."""

import torch

from attnscope.variants.layer_scaling import layer_scaling
from tests.variants.calls import noise


def test_block_four_reads_half_and_block_one_all() -> None:
    normed = noise(0, 2, 5, 8)
    assert torch.equal(layer_scaling(normed, layer=1), normed)
    assert torch.equal(layer_scaling(normed, layer=4), normed / 2)
