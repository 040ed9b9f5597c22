"""Projections in every form: with added constants, with an axis for heads, stored by columns."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.weights import weights
from tests.hf.families import FAMILIES

WIDTH, HEADS, DIM = 16, 4, 6  # all sizes differ, and all heads together are wider than the stream


class Raw(nn.Module):
    """Attention with raw parameters: `order` is the order of width, head and channel in the weights of q, k and v."""

    def __init__(self, order: str, out: str, constant: bool, bent: bool = False) -> None:
        super().__init__()
        sizes = {"w": WIDTH, "n": HEADS, "d": DIM}
        self.order, self.out, self.bent = order, out, bent
        shape = [sizes[c] for c in order]
        self.decoy = nn.Parameter(torch.randn(shape))
        self.q, self.k, self.v = (nn.Parameter(torch.randn(shape) / WIDTH**0.5) for _ in range(3))
        self.o = nn.Parameter(torch.randn([sizes[c] for c in out]) / WIDTH**0.5)
        self.constants = nn.Parameter(torch.randn(3, HEADS, DIM) * constant)
        self.after = nn.Parameter(torch.randn(WIDTH) * constant)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum(f"btw,{self.order}->btnd", x, p) for p in (self.q, self.k, self.v))
        q, k, v = (t + c for t, c in zip((q, k, v), self.constants, strict=True))
        v = torch.tanh(v) if self.bent else v
        pattern = (torch.einsum("bind,bjnd->bnij", q, k) / DIM**0.5).softmax(-1)
        mixed = torch.einsum("bnij,bjnd->bind", pattern, v)
        write = torch.einsum(f"bind,{self.out}->biw", mixed, self.o)
        return (torch.tanh(write) if self.bent else write) + self.after

    def expected(self, name: str) -> Tensor:
        order, wanted = (self.out, "ndw") if name == "o" else (self.order, "nwd")
        return self.get_parameter(name).detach().permute([order.index(c) for c in wanted])


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(WIDTH), attention, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x).relu()


class Model(nn.Module):
    def __init__(self, order: str, out: str, constant: bool, bent: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(Raw(order, out, constant, bent)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def tokens() -> Tensor:
    """Two sequences that begin with the same token."""
    x = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1))
    x[1, 0] = x[0, 0]
    return x


@pytest.mark.parametrize("order", ["".join(p) for p in permutations("wnd")])
@pytest.mark.parametrize("constant", [False, True])
def test_raw_parameters_in_any_order_of_axes(order: str, constant: bool) -> None:
    for out in ("wnd", "ndw", "nwd") if order == "wnd" else (order,):
        model = Model(order, out, constant).eval()
        frames = weights(model, anatomy(model, {"x": tokens()}))
        assert len(frames) == 2
        for frame, block in zip(frames, model.blocks, strict=True):
            raw = block.get_submodule("attention")
            assert isinstance(raw, Raw)
            found = (frame.query_weight, frame.key_weight, frame.value_weight, frame.output_weight)
            for name, weight in zip("qkvo", found, strict=True):
                assert weight is not None, (name, order, out)
                assert torch.equal(weight, raw.expected(name)), (name, order, out)


def test_nonlinear_projections_are_not_found() -> None:
    """Values and writes with a nonlinearity are not linear maps of the stream."""
    model = Model("nwd", "nwd", constant=True, bent=True).eval()
    found = anatomy(model, {"x": tokens()})
    assert {str(site.projections) for site in found.sites} == {"qk"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sequences", [1, 2])
def test_constant_on_queries_with_equal_first_tokens(sequences: int, dtype: torch.dtype) -> None:
    """XLNet adds a constant to every query, and all sequences begin with the same token."""
    torch.manual_seed(2)
    config = hf.XLNetConfig(vocab_size=64, d_model=32, n_head=4, d_inner=48, n_layer=3, initializer_range=0.1)
    model = hf.XLNetModel(config).eval().to(dtype)
    ids = torch.randint(3, 64, (sequences, 9), generator=torch.Generator().manual_seed(3))
    ids[:, 0] = 1
    found = anatomy(model, {"input_ids": ids})
    assert [str(site.projections) for site in found.sites] == ["qkvo"] * 3
    for frame, layer in zip(weights(model, found), model.layer, strict=True):
        own = layer.rel_attn
        for weight, expected in ((frame.query_weight, own.q), (frame.key_weight, own.k), (frame.value_weight, own.v)):
            assert weight is not None
            assert torch.equal(weight, expected.transpose(0, 1))
        assert frame.output_weight is not None
        assert torch.equal(frame.output_weight, own.o.permute(1, 2, 0))


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "GPT-NeoX", "XLNet", "torch nn.TransformerEncoder"])
def test_weights_stored_by_columns_are_the_same_weights(name: str) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    model, example = family.model(), family.example()
    found = anatomy(model, example)
    before = weights(model, found)
    for parameter in model.parameters():
        if parameter.ndim > 1 and 1 not in parameter.shape:
            parameter.data = parameter.data.mT.contiguous().mT
            assert not parameter.is_contiguous()
    again = anatomy(model, example)
    assert [site.projections for site in again.sites] == [site.projections for site in found.sites]
    for one, other in zip(before, weights(model, again), strict=True):
        for part in ("query_weight", "key_weight", "value_weight", "output_weight"):
            assert torch.equal(getattr(one, part), getattr(other, part)), part
