"""Each cut equals a forward pass written by hand, for seven kinds of blocks, and the model is restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
    MPNetConfig,
    MPNetModel,
    ViTConfig,
    ViTModel,
    XLNetConfig,
    XLNetModel,
)

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import CUTS, Cut, cut
from attnscope.papers.models.nano import Config, Nano

Stream = Callable[[nn.Module, Tensor, Cut], Tensor]
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
PICTURE = {**SIZES, "image_size": 12, "patch_size": 4}
PICTURE.pop("vocab_size")
ALL = {**CUTS, "no mlp skip": replace(CUTS["san+mlp"], mlp_skip=False)}


def post_norm(attend, attention_norm, mlp, mlp_norm, x: Tensor, variant: Cut) -> Tensor:
    x = attention_norm(attend(x) + (x if variant.skip else 0))
    return mlp_norm((mlp(x) if variant.mlp else 0) + (x if variant.mlp_skip or not variant.mlp else 0))


def pre_norm(attend, attention_norm, mlp, mlp_norm, x: Tensor, variant: Cut) -> Tensor:
    x = attend(attention_norm(x)) + (x if variant.skip else 0)
    if not variant.mlp:
        return x
    return mlp(mlp_norm(x)) + (x if variant.mlp_skip else 0)


def bert(model: Any, ids: Tensor, variant: Cut) -> Tensor:
    x = model.embeddings(ids)
    for layer in model.encoder.layer:
        x = post_norm(
            lambda h, layer=layer: layer.attention.output.dense(layer.attention.self(h)[0]),
            layer.attention.output.LayerNorm,
            lambda h, layer=layer: layer.output.dense(layer.intermediate(h)),
            layer.output.LayerNorm,
            x,
            variant,
        )
    return x


def albert(model: Any, ids: Tensor, variant: Cut) -> Tensor:
    x = model.encoder.embedding_hidden_mapping_in(model.embeddings(ids))
    layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    own = layer.attention

    def attend(h: Tensor) -> Tensor:
        q, k, v = (p(h).unflatten(-1, (4, -1)).transpose(1, 2) for p in (own.query, own.key, own.value))
        pattern = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return own.dense((pattern @ v).transpose(1, 2).flatten(2))

    for _ in range(model.config.num_hidden_layers):
        x = post_norm(
            attend,
            own.LayerNorm,
            lambda h: layer.ffn_output(layer.activation(layer.ffn(h))),
            layer.full_layer_layer_norm,
            x,
            variant,
        )
    return x


def gpt2(model: Any, ids: Tensor, variant: Cut) -> Tensor:
    x = model.wte(ids) + model.wpe(torch.arange(ids.shape[1]))
    for block in model.h:
        x = pre_norm(lambda h, block=block: block.attn(h)[0], block.ln_1, block.mlp, block.ln_2, x, variant)
    return model.ln_f(x)


def llama(model: Any, ids: Tensor, variant: Cut) -> Tensor:
    x = model.embed_tokens(ids)
    turn = model.rotary_emb(x, torch.arange(ids.shape[1])[None])
    for layer in model.layers:
        x = pre_norm(
            lambda h, layer=layer: layer.self_attn(hidden_states=h, position_embeddings=turn, attention_mask=None)[0],
            layer.input_layernorm,
            layer.mlp,
            layer.post_attention_layernorm,
            x,
            variant,
        )
    return model.norm(x)


def neox(model: Any, ids: Tensor, variant: Cut) -> Tensor:
    """GPT-NeoX has one skip for both: attention + MLP remains without it, whatever `mlp_skip` is."""
    x = model.embed_in(ids)
    turn = model.rotary_emb(x, torch.arange(ids.shape[1])[None])
    for layer in model.layers:
        write = layer.attention(layer.input_layernorm(x), attention_mask=None, position_embeddings=turn)[0]
        if variant.mlp:
            write = write + layer.mlp(layer.post_attention_layernorm(x))
        x = write + x if variant.skip else write
    return model.final_layer_norm(x)


def vit(model: Any, pixels: Tensor, variant: Cut) -> Tensor:
    patches = model.embeddings.patch_embeddings.projection(pixels).flatten(2).transpose(1, 2)
    first = model.embeddings.cls_token.expand(len(patches), -1, -1)
    x = torch.cat([first, patches], dim=1) + model.embeddings.position_embeddings

    def attend(own: Any, h: Tensor) -> Tensor:
        q, k, v = (p(h).unflatten(-1, (4, -1)).transpose(1, 2) for p in (own.q_proj, own.k_proj, own.v_proj))
        pattern = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return own.o_proj((pattern @ v).transpose(1, 2).flatten(2))

    for layer in model.layers:
        x = pre_norm(
            lambda h, layer=layer: attend(layer.attention, h),
            layer.layernorm_before,
            layer.mlp,
            layer.layernorm_after,
            x,
            variant,
        )
    return model.layernorm(x)


def xlnet(model: Any, ids: Tensor, variant: Cut) -> Tensor:
    """Logits of query i and key j: (q_i + w) . k_j and (q_i + r) . (R at distance i - j), on a stream [batch, token].

    The model has tokens first. Its terms for relative positions are looked up pair by pair.
    """
    x = model.word_embedding(ids)
    n = ids.shape[1]
    table = model.relative_positional_encoding(n, n)[:, 0].to(x.dtype)  # distance n, n - 1, ..., 1 - n
    distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]

    def attend(own: Any, h: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btw,wnd->bntd", h, p) for p in (own.q, own.k, own.v))
        positions = torch.einsum("ijw,wnd->nijd", table[n - distance], own.r)
        content = (q + own.r_w_bias[:, None]) @ k.mT
        relative = torch.einsum("bnid,nijd->bnij", q + own.r_r_bias[:, None], positions)
        pattern = ((content + relative) / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bnid,wnd->biw", pattern @ v, own.o)

    for layer in model.layer:
        mlp = layer.ff
        x = post_norm(
            lambda h, layer=layer: attend(layer.rel_attn, h),
            layer.rel_attn.layer_norm,
            lambda h, mlp=mlp: mlp.layer_2(mlp.activation_function(mlp.layer_1(h))),
            mlp.layer_norm,
            x,
            variant,
        )
    return x


def made(cls: type, config: object) -> nn.Module:
    torch.manual_seed(0)
    return cls(config).double().eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Stream]] = {
    "bert": (lambda: made(BertModel, BertConfig(**SIZES, initializer_range=0.2)), bert),
    "albert": (lambda: made(AlbertModel, AlbertConfig(**SIZES, embedding_size=8, initializer_range=0.2)), albert),
    "gpt2": (
        lambda: made(GPT2Model, GPT2Config(vocab_size=50, n_embd=24, n_layer=3, n_head=4, initializer_range=0.2)),
        gpt2,
    ),
    "llama": (lambda: made(LlamaModel, LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.2)), llama),
    "neox": (lambda: made(GPTNeoXModel, GPTNeoXConfig(**SIZES, initializer_range=0.2)), neox),
    "vit": (lambda: made(ViTModel, ViTConfig(**PICTURE, initializer_range=0.2)), vit),
    "xlnet": (
        lambda: made(
            XLNetModel,
            XLNetConfig(vocab_size=50, d_model=24, n_layer=3, n_head=4, d_inner=40, initializer_range=0.2),
        ),
        xlnet,
    ),
}


def given(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind == "vit":
        return torch.randn(2, 3, 12, 12, generator=generator, dtype=torch.float64)
    return torch.randint(0, 50, (2, 7), generator=generator)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ALL)
def test_cut_equals_a_forward_pass_by_hand(kind: str, name: str) -> None:
    build, by_hand = MODELS[kind]
    model, variant = build(), ALL[name]
    ids = given(kind)
    with torch.no_grad():
        whole = model(ids).last_hidden_state
        with cut(model, anatomy(model), variant):
            seen = model(ids).last_hidden_state
        expected = by_hand(model, ids, variant)
        # Llama computes its norm and rotation in float32 inside a float64 model
        tolerance = 2e-5 if kind == "llama" else 1e-10
        torch.testing.assert_close(seen, expected, rtol=tolerance, atol=tolerance)
        assert variant.skip or (seen - whole).abs().max() > 1e-2
        assert torch.equal(model(ids).last_hidden_state, whole)  # restored bit for bit
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", MODELS)
def test_whole_is_bit_equal(kind: str) -> None:
    model = MODELS[kind][0]()
    ids = given(kind)
    with torch.no_grad():
        before = model(ids).last_hidden_state
        with cut(model, anatomy(model), CUTS["whole"]):
            assert torch.equal(model(ids).last_hidden_state, before)


def test_an_exception_leaves_nothing_behind() -> None:
    model = MODELS["bert"][0]()
    with pytest.raises(ZeroDivisionError), cut(model, anatomy(model), CUTS["san"]):
        raise ZeroDivisionError
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_pass_that_fails_does_not_disturb_the_next() -> None:
    model = MODELS["albert"][0]()
    ids = torch.arange(6)[None]
    with torch.no_grad(), cut(model, anatomy(model), CUTS["san"]):
        expected = model(ids).last_hidden_state
        with pytest.raises(IndexError):
            model(ids + 1000)
        assert torch.equal(model(ids).last_hidden_state, expected)


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("name", CUTS)
def test_cut_nano_equals_nano_built_without_the_parts(norm: str, name: str) -> None:
    variant = CUTS[name]
    settings: dict[str, Any] = {
        "vocab_size": 20,
        "width": 12,
        "heads": 2,
        "layers": 3,
        "norm": norm,
        "initial": 0.4,
        "mlp": 16,
    }
    model = Nano(Config(**settings), seed=3).double()
    twin = Nano(Config(**settings, skip=float(variant.skip), mlp_skip=1.0), seed=3).double()
    ids = torch.arange(8)[None]
    with torch.no_grad():
        if not variant.mlp:
            for block in twin.blocks:
                mlp: Any = block.mlp
                mlp[-1].weight.zero_()
                mlp[-1].bias.zero_()
        with cut(model, anatomy(model, {"input_ids": ids}), variant):
            torch.testing.assert_close(model(ids), twin(ids), rtol=1e-10, atol=1e-11)


def test_inseparable_writes_are_refused() -> None:
    model = made(MPNetModel, MPNetConfig(**SIZES))
    found = anatomy(model)
    blocks = tuple(replace(b, writes=replace(b.writes, count=0)) for b in found.stacks[0].blocks)
    blind = replace(found, stacks=(replace(found.stacks[0], blocks=blocks),))
    with pytest.raises(RefusalError, match="cannot be separated"), cut(model, blind, CUTS["san"]):
        pass
