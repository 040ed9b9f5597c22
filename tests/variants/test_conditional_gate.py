"""The conditional channel gate: what is written depends on the token."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.conditional_gate import conditional_gate
from tests.variants.calls import noise


def test_a_token_can_close_its_own_write_and_no_other() -> None:
    write, stream = noise(0, 1, 5, 4), torch.zeros(1, 5, 4, dtype=torch.float64)
    stream[0, 2, 0] = 1.0
    weight = torch.zeros(4, 4, dtype=torch.float64)
    weight[0] = -80.0
    found = conditional_gate(write, stream, gate_weight=weight, gate_bias=torch.zeros(4))
    assert float(found[0, 2].abs().max()) < 1e-30
    others = [0, 1, 3, 4]
    assert torch.equal(found[0, others], write[0, others])


def test_channels_have_gates_of_their_own() -> None:
    write, stream = noise(0, 1, 5, 4), noise(1, 1, 5, 4)
    begun = conditional_gate.start(Size(2, 2, 4))
    bias = torch.tensor([0.0, -80.0, 0.0, 80.0], dtype=torch.float64)
    found = conditional_gate(write, stream, gate_weight=begun["gate_weight"], gate_bias=bias)
    expected = write * torch.tensor([1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-30)
