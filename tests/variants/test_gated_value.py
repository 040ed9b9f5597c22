"""Gates on values (arXiv:2602.01468)."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.gated_value import gated_value
from tests.variants.calls import noise, softmax

TOKENS, HEADS, DIM, WIDTH = 5, 2, 3, 6


def test_the_gated_module_is_its_hierarchical_mixture() -> None:
    """sum_k A^h_ik (v_kd gate_khd): the gate is read at the key's token."""
    x, weight, bias = noise(0, 1, TOKENS, WIDTH), noise(1, WIDTH, HEADS * DIM), noise(2, HEADS * DIM)
    value, pattern = noise(3, 1, TOKENS, HEADS, DIM), softmax(noise(4, HEADS, TOKENS, 4), noise(5, HEADS, TOKENS, 4))
    gated = gated_value(value, x, gate_weight=weight, gate_bias=bias, gain=1.0)
    expected = torch.zeros(HEADS, TOKENS, DIM, dtype=torch.float64)
    for head in range(HEADS):
        for i in range(TOKENS):
            for k in range(TOKENS):
                gates = (x[0, k] @ weight + bias).sigmoid()[head * DIM : (head + 1) * DIM]
                expected[head, i] += pattern[head, i, k] * value[0, k, head] * gates
    torch.testing.assert_close(pattern @ gated[0].transpose(0, 1), expected, rtol=1e-12, atol=1e-12)


def test_a_gate_forced_to_one_and_the_start_change_nothing() -> None:
    value, stream = noise(0, 2, TOKENS, HEADS, DIM), noise(1, 2, TOKENS, WIDTH)
    wide = {"gate_weight": torch.zeros(WIDTH, HEADS), "gate_bias": torch.full((HEADS,), 60.0), "gain": 1.0}
    torch.testing.assert_close(gated_value(value, stream, **wide), value, rtol=1e-12, atol=0)
    assert torch.equal(gated_value(value, stream, **gated_value.start(Size(HEADS, DIM, WIDTH))), value)


def test_heads_that_share_values_share_gates() -> None:
    size = Size(heads=4, dim=DIM, width=WIDTH, kv_heads=HEADS)
    assert gated_value.start(size, how="headwise")["gate_bias"].shape == (HEADS,)
    assert gated_value.start(size)["gate_bias"].shape == (HEADS * DIM,)
