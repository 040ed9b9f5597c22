"""Dynamic tanh: bounded and elementwise."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.dynamic_tanh import dynamic_tanh
from tests.variants.calls import noise

OWN = {name: one.double() for name, one in dynamic_tanh.start(Size(2, 4, 8)).items()}


def test_by_the_formula_and_bounded_by_the_gain() -> None:
    stream = 50 * noise(0, 2, 5, 8)
    found = dynamic_tanh(stream, alpha=torch.tensor([0.3]), gain=torch.full((8,), 2.0), shift=torch.full((8,), 0.5))
    torch.testing.assert_close(found, 2 * torch.tanh(torch.tensor([0.3]) * stream) + 0.5)
    assert float((found - 0.5).abs().max()) <= 2


def test_a_coordinate_does_not_look_at_the_others() -> None:
    stream = noise(0, 2, 5, 8)
    other = stream.clone()
    other[..., 3] = 100.0
    kept = [channel for channel in range(8) if channel != 3]
    assert torch.equal(dynamic_tanh(stream, **OWN)[..., kept], dynamic_tanh(other, **OWN)[..., kept])
