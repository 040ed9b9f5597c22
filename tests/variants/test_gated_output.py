"""Gates behind heads (arXiv:2602.01468, arXiv:2505.06708)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.core.variant import Size
from attnscope.variants.gated_output import gated_output
from tests.variants.calls import noise, softmax

TOKENS, HEADS, DIM, WIDTH = 5, 2, 3, 6
SIZE = Size(HEADS, DIM, WIDTH)


def attention() -> dict[str, Tensor]:
    """A stream and projections; `output` as [head, dim, width]."""
    made = {name: noise(seed, HEADS, WIDTH, DIM) / 2 for seed, name in enumerate(("query", "key", "value"))}
    return {**made, "stream": noise(5, 1, TOKENS, WIDTH), "output": noise(6, HEADS, DIM, WIDTH)}


def module(of: dict[str, Tensor], **gates: Tensor | float) -> Tensor:
    """Multi-head attention with a gate behind each head, as it would stand in a model."""
    query, key, value = (of["stream"][:, None] @ of[name] for name in ("query", "key", "value"))
    mixed = (softmax(query, key) @ value).transpose(1, 2)
    return torch.einsum("bqhd,hdw->bqw", gated_output(mixed, of["stream"], **gates), of["output"])


def test_the_gated_module_is_its_hierarchical_mixture() -> None:
    """[MHA(X)]_ij = sum_h sum_d sum_k gate_ihd A^h_ik (x_k^T W_V^h[:, d]) W_O^h[d, j], term by term."""
    of = attention()
    weight, bias = noise(7, WIDTH, HEADS * DIM), noise(8, HEADS * DIM)
    x = of["stream"][0]
    expected = torch.zeros(TOKENS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        pattern = softmax(x @ of["query"][head], x @ of["key"][head])
        for i in range(TOKENS):
            gates = (x[i] @ weight + bias).sigmoid()[head * DIM : (head + 1) * DIM]
            for k in range(TOKENS):
                expert = (x[k] @ of["value"][head]) * gates
                expected[i] += pattern[i, k] * expert @ of["output"][head]
    found = module(of, gate_weight=weight, gate_bias=bias, gain=1.0)[0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_gate_forced_to_one_is_plain_attention() -> None:
    of = attention()
    open_gates: dict[str, Any] = {
        "gate_weight": torch.zeros(WIDTH, 6),
        "gate_bias": torch.full((6,), 60.0),
        "gain": 1.0,
    }
    mixture = torch.zeros(1, TOKENS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        query, key = (of["stream"] @ of[name][head] for name in ("query", "key"))
        mixture = mixture + softmax(query, key) @ (of["stream"] @ of["value"][head] @ of["output"][head])
    torch.testing.assert_close(module(of, **open_gates), mixture, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("how", "gates"), [("elementwise", HEADS * DIM), ("headwise", HEADS)])
def test_the_start_is_exactly_one_and_can_move_at_once(how: str, gates: int) -> None:
    begun = gated_output.start(SIZE, how=how)
    assert begun["gate_weight"].shape == (WIDTH, gates)
    begun = {name: one.double().requires_grad_() for name, one in begun.items()}
    mixed, stream = noise(0, 2, TOKENS, HEADS, DIM), noise(1, 2, TOKENS, WIDTH)
    found = gated_output(mixed, stream, **begun)
    assert torch.equal(found, mixed)
    found.square().sum().backward()
    for one in begun.values():
        assert one.grad is not None
        assert bool((one.grad.abs() > 0.01).all())


def test_one_gate_a_head_scales_the_whole_head() -> None:
    mixed, stream = noise(0, 2, TOKENS, HEADS, DIM), noise(1, 2, TOKENS, WIDTH)
    bias = torch.tensor([0.0, -50.0], dtype=torch.float64)
    found = gated_output(mixed, stream, gate_weight=torch.zeros(WIDTH, HEADS), gate_bias=bias)
    assert torch.equal(found[..., 0, :], mixed[..., 0, :])
    assert float(found[..., 1, :].abs().max()) < 1e-20
