"""freeze(): the linear form of a model gives the model's own numbers, block by block, or the model is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.loading.classes import with_plain_experts
from attnscope.papers.models.nano import Config, Nano
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import lengths
from attnscope.pathways.network import Network, differences, relative_difference
from attnscope.pathways.shapley import shapley
from attnscope.pathways.targets import stream_norm
from tests.hf.families import FAMILIES, Family
from tests.pathways.enumeration import Block, Explicit, Shape

REFUSED = {"torch nn.MultiheadAttention": "no blocks"}
FOLLOWED = [family for family in FAMILIES if family.name not in REFUSED]


def exact(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}


def check(network: Network, allowed: float) -> None:
    """Check every block alone and all blocks in sequence, forwards and backwards."""
    assert max(differences(network)) <= allowed
    for count in ("attention", "both") if allowed < 1e-5 else ("attention",):
        found = lengths(network, count)
        assert found.stream.parts.shape[1] - 1 == network.layers
        assert relative_difference(found.stream.parts.sum((0, 1, 2)), network.streams[-1]) <= allowed
    assert relative_difference(lengths(network).output(network.streams[-1]), network.output) <= allowed


@pytest.mark.parametrize("family", FOLLOWED, ids=lambda f: f.name)
def test_families_in_float64(family: Family) -> None:
    model, batch = family.model().double(), exact(family.batch("right" if "right" in family.paddings else "none"))
    with_plain_experts(model)  # as `paths` does: grouped experts do not support float64
    with torch.no_grad():
        found = anatomy(model, None if family.example() is None else batch)
    for stack in found.stacks:
        network = freeze(model, batch, found, stack.name)
        assert network.layers == family.layers[stack.name]
        check(network, 1e-10)
        target = stream_norm(network)
        table = head_table(network, target)
        assert table.contributions.shape[:2] == (network.layers, family.heads)
        assert abs(table.total - float(network.streams[-1].norm())) <= 1e-10 * table.total
        every = shapley(network, target)
        most = 2 if family.name == "gpt_oss" else 1  # every expert that gets a token is an MLP
        assert all(1 <= len(mlps) <= most for mlps in every.mlps)
        assert abs(every.nothing + every.total - every.everything) <= 1e-10 * every.everything


def rounding(model: nn.Module, layers: int) -> float:
    """Return the largest relative difference of two float32 runs of one model that differ only in rounding.

    Memory layouts (of a key cache), fused layers and the width of vector registers change the order of sums. A dot
    product of m terms has an error of sqrt(m) u times the sum of their sizes (u = 2^-24). That sum is about sqrt(m)
    times the result if terms of both signs cancel, which gives m u. A block has at most eight such steps in sequence
    (normalise, query and key, logits, softmax, mix, write, up, down), and what follows the blocks counts as one more.
    These errors are independent, so their sum grows like a square root.
    """
    matrices = [
        weight
        for module in model.modules()
        if isinstance(weight := getattr(module, "weight", None), Tensor) and not isinstance(module, nn.Embedding)
    ]
    longest = max(max(weight.shape) for weight in matrices)
    return float((8 * (layers + 1)) ** 0.5 * longest * 2.0**-24)


def first_tensor(answer: Any) -> Tensor:
    return next(x for x in (answer.values() if isinstance(answer, dict) else [answer]) if isinstance(x, Tensor))


@pytest.mark.parametrize("family", FOLLOWED, ids=lambda f: f.name)
def test_families_in_float32(family: Family) -> None:
    """The numbers are equal up to rounding, not bit for bit as with the tap (test_families.py): the network runs
    without a key cache, which changes the memory layout of GPT-J, and without fused layers."""
    model, batch = family.model(), family.batch()
    with torch.no_grad():
        own = first_tensor(model(**batch))
        network = freeze(model, batch, None if family.example() is None else anatomy(model, batch))
    check(network, 1e-4)
    allowed = rounding(model, sum(family.layers.values()))
    assert allowed < 5e-5  # half of the difference at which a model is refused
    assert relative_difference(network.output, own) <= allowed


def test_rounding_tolerance_is_below_real_errors() -> None:
    """The tolerance is far below the effect of bfloat16, of a missing token, or of one wrong bias."""
    family = next(f for f in FAMILIES if f.name == "GPT-2")
    model, batch = family.model(), family.batch()
    with torch.no_grad():
        network = freeze(model, batch)
        allowed = rounding(model, network.layers)
        coarse = first_tensor(family.model().bfloat16()(**batch)).float()
        shorter = first_tensor(model(input_ids=batch["input_ids"][:, 1:]))
        model.get_parameter("transformer.h.0.mlp.c_proj.bias")[0] += 0.01
        nudged = first_tensor(model(**batch))
    for other, ours in ((coarse, network.output), (shorter, network.output[:, 1:]), (nudged, network.output)):
        assert relative_difference(ours, other) > 10 * allowed


@pytest.mark.parametrize("name", REFUSED)
def test_refused_families(name: str) -> None:
    family = next(f for f in FAMILIES if f.name == name)
    with pytest.raises(RefusalError, match=REFUSED[name]):
        freeze(family.model(), family.batch())


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_nano(norm: Any, activation: Any) -> None:
    config = Config(
        vocab_size=11, width=12, heads=3, layers=3, mlp=20, norm=norm, activation=activation, skip=0.7, causal=True
    )
    model = Nano(config).double()
    network = freeze(model, {"input_ids": torch.arange(8).reshape(1, 8)})
    check(network, 1e-13)
    assert all(len(mlps) == 1 for mlps in shapley(network, stream_norm(network)).mlps)


def test_a_module_without_configuration() -> None:
    model = Explicit(Shape(3, 2, "pre", mlp=5, mix="sdpa"))
    check(freeze(model, {"x": model.example()}), 1e-13)


@pytest.mark.parametrize(
    "activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "tanh", "leaky_relu", "mish"]
)
@pytest.mark.parametrize("gated", [False, True])
def test_activations(activation: str, gated: bool) -> None:
    """Every activation gives one MLP edge per block and the model's numbers, alone (GPT-2) and as a gate (Llama)."""
    if gated:
        model: nn.Module = hf.LlamaForCausalLM(_llama(hidden_act=activation))
    else:
        config = hf.GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1)
        config.eos_token_id, config.activation_function = 2, activation
        model = hf.GPT2LMHeadModel(config)
    network = freeze(model.double().eval(), {"input_ids": torch.arange(3, 9)[None]})
    check(network, 1e-12)
    assert lengths(network, "both").stream.parts.shape[1:3] == (3, 3)


def test_zero_before_an_activation() -> None:
    """For units that are exactly zero, the gate of silu is its slope (one half), and that of relu is zero."""
    for activation in ("gelu", "relu", "silu"):
        model = Explicit(Shape(2, 2, "none", mlp=5, activation=activation))
        for block in model.blocks:
            assert isinstance(block, Block)
            assert block.up is not None
            block.up.weight.data[:2] = 0
            block.up.bias.data[:2] = 0
            block.up.bias.data[2] = 1
        x = model.example()
        check(freeze(model, {"x": x}), 1e-13)


def test_model_is_restored_even_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hf.LlamaForCausalLM(_llama()).eval()
    model.model.layers[0].train()
    batch = {"input_ids": torch.arange(6)[None]}
    before = _everything(model)
    network = freeze(model, batch)
    lengths(network)
    assert _everything(model) == before

    def broken(*_: Any, **__: Any) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model.model.layers[1].mlp), "forward", broken)
        with pytest.raises(KeyboardInterrupt):
            lengths(network)
        with pytest.raises(KeyboardInterrupt):
            freeze(model, batch, anatomy_of(model))
        patch.setattr(type(model.lm_head), "forward", broken)
        with pytest.raises(KeyboardInterrupt):
            network.tail(network.streams[-1])
    assert _everything(model) == before


def anatomy_of(model: nn.Module) -> Any:
    """Return the anatomy of the same model before it is broken."""
    return anatomy(hf.LlamaForCausalLM(model.config).eval())


def _everything(model: nn.Module) -> dict[str, Any]:
    """Return the modes, hooks and replaced forwards of all modules."""
    return {
        path: {key: dict(x) if key.endswith("hooks") else id(x) for key, x in vars(module).items() if key != "training"}
        | {"training": module.training}
        for path, module in model.named_modules()
    }


def _llama(**options: Any) -> Any:
    return hf.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, **options
    )


class _Changed(nn.Module):
    """A nano model with another MLP."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = Explicit(Shape(2, 2, "pre", mlp=5))
        blocks: Any = self.inner.blocks
        for block in blocks:
            block.perceive = lambda x, block=block: block.down(activation(block.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_refusals_name_their_cause() -> None:
    x = Explicit(Shape(2, 2, "pre")).example()
    with pytest.raises(RefusalError, match=r"block 0 of _Changed .*'sin' is not linear"):
        freeze(_Changed(torch.sin), {"x": x})
    with pytest.raises(RefusalError, match=r"differs from the model by \d\.\de[+-]\d+ .*block 0.*dropout left on"):
        freeze(_Changed(lambda z: F.dropout(F.gelu(z), 0.5, training=True)), {"x": x})
    with pytest.raises(RefusalError, match=r"bfloat16.*`dtype='float64'`"):
        freeze(hf.LlamaForCausalLM(_llama()).bfloat16(), {"input_ids": torch.arange(6)[None]})
    with pytest.raises(RefusalError, match="no stack called 'decoder'"):
        freeze(hf.LlamaForCausalLM(_llama()), {"input_ids": torch.arange(6)[None]}, stack="decoder")


def test_nan_weights_are_named() -> None:
    model = hf.LlamaForCausalLM(_llama()).eval()
    model.model.layers[1].mlp.up_proj.weight.data[3, 2] = torch.nan
    with pytest.raises(RefusalError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        freeze(model, {"input_ids": torch.arange(6)[None]})
    model = hf.LlamaForCausalLM(_llama()).eval()
    model.model.layers[0].mlp.up_proj.weight.data.fill_(3e38)
    with pytest.raises(RefusalError, match=r"NaN or infinity in block 0"):
        freeze(model, {"input_ids": torch.arange(6)[None]})


@pytest.mark.filterwarnings("ignore")
def test_quantised_weights_are_refused() -> None:
    model = hf.LlamaForCausalLM(_llama()).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(RefusalError, match=r"linear_dynamic|quantised"):
        freeze(quantised, {"input_ids": torch.arange(6)[None]})


def test_a_stream_changed_between_blocks_is_refused() -> None:
    class Between(Explicit):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x) * 2
            return self.out(x)

    model = Between(Shape(2, 2, "pre", mix="sdpa"))
    with pytest.raises(RefusalError, match="between blocks 0 and 1"):
        freeze(model, {"x": model.example()})


class Bare(nn.Module):
    """Blocks of attention and a skip, without a single parameter."""

    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
            return x + F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_a_model_without_parameters(dtype: torch.dtype, allowed: float) -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    network = freeze(Bare(), {"x": x})
    assert network.layers == 3
    assert network.output.dtype == dtype
    check(network, allowed)
    with pytest.raises(RefusalError, match="float64 or float32"):
        freeze(Bare(), {"x": x.bfloat16()})
