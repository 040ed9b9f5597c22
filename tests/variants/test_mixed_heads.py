"""Heads of different kinds (arXiv:2205.07100): the module of torch, and each kind by itself."""

import pytest
import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.core.variant import Size
from attnscope.variants.mixed_heads import mixed_heads
from tests.variants.calls import inputs, noise

TOKENS, HEADS, DIM = 10, 4, 3
WIDTH = HEADS * DIM


@pytest.fixture
def module() -> nn.MultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
        nn.init.normal_(made.in_proj_bias)
        nn.init.normal_(made.out_proj.bias)
    return made.requires_grad_(False)


def projected(module: nn.MultiheadAttention, stream: Tensor) -> list[Tensor]:
    assert module.in_proj_weight is not None
    three = nn.functional.linear(stream, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    return [one.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for one in three]


def test_full_heads_are_the_module_and_its_output_is_a_sum_over_heads(module: nn.MultiheadAttention) -> None:
    """sum_h z_h W_O^h + b, to 1e-6 and better."""
    stream = noise(0, 2, TOKENS, WIDTH)
    mixed = mixed_heads(inputs(*projected(module, stream), scale=DIM**-0.5), kinds=("full",))
    rows = module.out_proj.weight.mT.unflatten(0, (HEADS, DIM))
    output = sum(mixed[:, head] @ rows[head] for head in range(HEADS)) + module.out_proj.bias
    torch.testing.assert_close(output, module(stream, stream, stream, need_weights=False)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_every_head_equals_its_kind_alone(causal: bool) -> None:
    query, key, value = noise(1, 3, 2, HEADS, TOKENS, DIM)
    kinds = ("full", "local", "compressed", "local")
    own = {name: one.double() for name, one in mixed_heads.start(Size(HEADS, DIM, WIDTH), kinds=kinds).items()}
    found = mixed_heads(inputs(query, key, value, causal=causal), kinds=kinds, local_window=2, **own)
    near = variants()["local"](inputs(query, key, value, causal=causal), window=2)
    assert torch.equal(found[:, [1, 3]], near[:, [1, 3]])
    alone = {name.removeprefix("compressed_"): one for name, one in own.items()}
    fewer = variants()["compressed"](inputs(query[:, 2:3], key[:, 2:3], value[:, 2:3], causal=causal), **alone)
    assert torch.equal(found[:, 2:3], fewer)


def test_any_variant_of_the_room_can_be_a_head() -> None:
    query, key, value = noise(1, 3, 2, HEADS, TOKENS, DIM)
    found = mixed_heads(inputs(query, key, value, causal=True), kinds=("full", "minus_uniform"))
    expected = variants()["minus_uniform"](inputs(query, key, value, causal=True))
    assert torch.equal(found[:, [1, 3]], expected[:, [1, 3]])


@pytest.mark.parametrize(
    ("kinds", "more", "says"),
    [
        (("full", "locale"), {}, "Did you mean 'local'"),
        (("gated_output",), {}, "no kind of head"),
        (("doubly_normalised",), {}, "see later tokens"),
        ((), {}, "at least one"),
        (("full",), {"local_window": 2}, "belongs to no kind"),
    ],
)
def test_unknown_kinds_of_heads_are_refused(kinds: tuple[str, ...], more: dict[str, int], says: str) -> None:
    query, key, value = noise(1, 3, 2, HEADS, TOKENS, DIM)
    with pytest.raises(RefusalError, match=says):
        mixed_heads(inputs(query, key, value, causal=True), kinds=kinds, **more)
