"""Misleading situations: equal lengths, caches, padding, skipped blocks, overlapping taps, models that change."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.example import run
from attnscope.hf.anatomy.weights import weights
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.hf.tapping.verify import verify
from tests.hf.families import FAMILIES, GROUPED, TEXT


def family(name: str) -> Any:
    return next(f for f in FAMILIES if f.name == name)


class Skipping(nn.Module):
    """A model that skips its second block for long inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = x if index == 1 and x.shape[1] > 8 else layer(x)
        return x


# cross-attention


@pytest.mark.parametrize("tokens", [1, 5, 9])
@pytest.mark.parametrize("given", ["decoder_input_ids", "labels"])
def test_equally_many_tokens_for_encoder_and_decoder(tokens: int, given: str) -> None:
    model = family("T5").model()
    ids = torch.randint(3, 64, (2, tokens))
    found = anatomy(model, {"input_ids": ids, given: ids})
    assert found.sites == anatomy(model).sites
    assert {s.layer for s in found.sites if s.site == "cross"} == {0, 1, 2}


def test_equal_lengths_of_embeddings_are_accepted() -> None:
    # Embeddings are not cut, because the meaning of their axes is unknown.
    vectors = torch.randn(2, 5, 32)
    found = anatomy(family("T5").model(), {"inputs_embeds": vectors, "decoder_inputs_embeds": vectors})
    assert [site.site for site in found.sites if site.stack == "decoder"] == ["self", "cross"] * 3


def test_example_of_one_token_is_enough() -> None:
    model = family("Llama").model()
    assert anatomy(model, {"input_ids": torch.tensor([[5]])}).sites == anatomy(model).sites


# overlapping taps


def watched_state(model: nn.Module) -> tuple[Any, ...]:
    forwards = [vars(module).get("forward") for module in model.modules()]
    return AttentionInterface.get_interface, torch.backends.mha.get_fastpath_enabled(), forwards


@pytest.mark.parametrize("name", ["Llama", "GPT-J", "Falcon", "torch nn.TransformerEncoder"])
def test_overlapping_taps_get_the_same_frames_and_restore_the_model(name: str) -> None:
    case = family(name)
    model = case.model()
    found = anatomy(model, case.example())
    before = watched_state(model)
    alone: list[Frame] = []
    with torch.no_grad(), tap(model, found, alone.append):
        run(model, case.batch())
    one, two, only_two = list[Frame](), list[Frame](), list[Frame]()
    first, second = ExitStack(), ExitStack()
    with torch.no_grad():
        first.enter_context(tap(model, found, one.append))
        second.enter_context(tap(model, found, lambda frame: (two if one_is_open else only_two).append(frame)))
        one_is_open = True
        run(model, case.batch())
        first.close()
        one_is_open = False
        run(model, case.batch())
        second.close()
    assert watched_state(model) == before
    for frames in (one, two, only_two):
        assert [(f.stack, f.site, f.layer) for f in frames] == [(f.stack, f.site, f.layer) for f in alone]
        for frame, expected in zip(frames, alone, strict=True):
            if isinstance(frame, AttentionFrame) and isinstance(expected, AttentionFrame):
                assert frame.scores.causal == expected.scores.causal
                assert (frame.scores.lse is None) == (expected.scores.lse is None)
                assert torch.equal(frame.mixed, expected.mixed)


# a frame for every site in every forward pass


def test_skipped_block_is_refused() -> None:
    model = Skipping().eval()
    found = anatomy(model, {"x": torch.randn(2, 5, 16)})
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, found, frames.append):
        model(torch.randn(2, 8, 16))
        with pytest.raises(RefusalError, match=r"skipped attention calls that it made on .* \(model block 1 self\)"):
            model(torch.randn(2, 9, 16))


def test_values_mixed_in_another_way_than_in_the_probe_are_refused() -> None:
    class Sometimes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
            pattern = (heads @ heads.transpose(-1, -2)).softmax(-1)
            mixed = pattern @ heads if x.shape[1] <= 6 else torch.einsum("...ij,...jd->...id", pattern, heads)
            return x + mixed.transpose(1, 2).flatten(2)

    model = nn.Sequential(Sometimes())
    found = anatomy(model, (torch.randn(2, 5, 16),))
    frames: list[Frame] = []
    with tap(model, found, frames.append):
        model(torch.randn(2, 6, 16))
        with pytest.raises(RefusalError, match="mixes values in 0 in an unsupported way"):
            model(torch.randn(2, 7, 16))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["Llama", "Falcon"])
def test_recomputation_of_gradient_checkpointing_is_ignored(name: str, reentrant: bool) -> None:
    model = family(name).model()
    found = anatomy(model)
    batch = family(name).batch()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    frames: list[Frame] = []
    with tap(model, found, frames.append):
        loss = model(**batch, labels=batch["input_ids"], use_cache=False).loss
        count = len(frames)
        loss.backward()
    assert len(frames) == count
    assert sum(isinstance(f, AttentionFrame) for f in frames) == 2
    assert all(p.grad is not None for p in model.parameters())


def test_a_cache_of_earlier_tokens_is_refused() -> None:
    model, batch = family("Llama").model(), family("Llama").batch()
    found = anatomy(model)
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, found, frames.append):
        cache = model(**batch, use_cache=True).past_key_values  # an empty cache changes nothing
        with pytest.raises(RefusalError, match="use_cache=False"):
            model(input_ids=batch["input_ids"][:, :1], past_key_values=cache)


def test_masks_that_are_not_tensors_are_refused() -> None:
    model = family("Llama").model()

    def flexible(*args: Any, **more: Any) -> Any:
        raise AssertionError("not reached")

    AttentionInterface.register("flexible", flexible)
    try:
        model.config._attn_implementation = "flexible"
        attention = model.model.layers[0].self_attn
        vectors = torch.randn(2, 5, 32)
        cosines = torch.ones(2, 5, 8), torch.zeros(2, 5, 8)
        found = anatomy(family("Llama").model())
        with tap(model, found, lambda frame: None):
            model.register_forward_pre_hook(lambda *_: attention(vectors, cosines, BlockMask()))
            with pytest.raises(RefusalError, match="is a BlockMask"):
                model(torch.zeros(2, 5, dtype=torch.long))
    finally:
        del AttentionInterface._global_mapping["flexible"]


class BlockMask:
    """Like the mask of FlexAttention, which is not a tensor."""


# padding that the model computes itself

SPEECH: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def speech(padded: int) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = hf.Wav2Vec2Model(hf.Wav2Vec2Config(**SPEECH)).eval()
    mask = torch.ones(2, 400, dtype=torch.long)
    mask[0, 400 - padded :] = 0
    return model, {"input_values": torch.randn(2, 400), "attention_mask": mask}


def test_padding_in_samples_becomes_padding_in_tokens() -> None:
    model, batch = speech(padded=200)
    found = anatomy(model)
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, found, frames.append):
        model(**batch)
    expected = model._get_feature_vector_attention_mask(39, batch["attention_mask"]).bool()
    assert 0 < int((~expected).sum()) < 39
    assert [(f.site, f.layer) for f in frames][:3] == [("stream", 0), ("self", 0), ("middle", 0)]
    for frame in frames:
        masks = [frame.token_mask] if isinstance(frame, StreamFrame) else [frame.query_mask, frame.key_mask]
        assert all(torch.equal(mask, expected) for mask in masks)
    result = verify(model, batch, found)
    assert result.passed, result.sentence


def test_padding_that_attention_does_not_show_is_refused() -> None:
    model, batch = speech(padded=200)
    found = anatomy(model)
    model.config._attn_implementation = "eager"
    model.encoder.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
    )
    with (
        torch.no_grad(),
        tap(model, found, lambda frame: None),
        pytest.raises(RefusalError, match="give batches without padding"),
    ):
        model(**batch)
    with torch.no_grad(), tap(model, found, lambda frame: None, {"model": torch.ones(2, 39, dtype=torch.bool)}):
        model(**batch)


def test_padding_shorter_than_a_token_is_ignored() -> None:
    model, batch = speech(padded=3)
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, anatomy(model), frames.append):
        model(**batch)
    assert all(bool(f.token_mask.all()) for f in frames if isinstance(f, StreamFrame))


# models that break or change


def test_stream_of_nan_is_passed_on() -> None:
    model = family("Llama").model()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(float("nan"))
    found = anatomy(model)
    assert found.stacks[0].chained
    result = verify(model, family("Llama").batch(), found)
    assert "except from block 1 on, where the model makes NaN" in result.sentence


def test_nan_from_one_batch_is_named_in_the_sentence() -> None:
    class Overflowing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float("nan") if x.shape[1] > 8 else x * 0.5

    model = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True) for _ in range(2))).eval()
    model[0].dropout2 = Overflowing()
    found = anatomy(model, (torch.randn(2, 5, 16),))
    result = verify(model, (torch.randn(2, 9, 16),), found)
    assert result.broken == ("block 1",)
    assert result.sentence.endswith("except from block 1 on, where the model makes NaN, output unchanged.")
    assert "except" not in verify(model, (torch.randn(2, 8, 16),), found).sentence


def test_model_that_replaces_its_modules_is_restored_and_refused() -> None:
    torch.manual_seed(0)
    config = hf.BigBirdConfig(**{**TEXT, "max_position_embeddings": 256}, block_size=4, num_random_blocks=1)
    model = hf.BigBirdModel(config).eval()
    ids = torch.randint(3, 64, (1, 128))
    modules, settings = dict(model.named_modules()), str(config)
    with torch.no_grad():
        before = model(ids)[0]
        with pytest.raises(RefusalError, match="BigBirdModel replaces modules"):
            anatomy(model)
        assert dict(model.named_modules()) == modules
        assert str(model.config) == settings
        assert torch.equal(model(ids)[0], before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


# weights and identity


def test_factors_of_latent_attention_are_not_projections() -> None:
    torch.manual_seed(0)
    latent = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    experts = {
        "n_routed_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
    }
    config = hf.DeepseekV3Config(
        **{**GROUPED, "num_key_value_heads": 4, "hidden_size": 40}, **latent, **experts, first_k_dense_replace=2
    )
    model = hf.DeepseekV3ForCausalLM(config).eval()
    for frame in weights(model, anatomy(model)):
        assert (frame.query_weight, frame.value_weight) == (None, None)
        assert frame.key_weight is None or frame.key_weight.shape[1] == 40
        assert frame.output_weight is not None
        assert frame.output_weight.shape == (4, 8, 40)


def test_hash_includes_the_configuration() -> None:
    def hash_with(**settings: Any) -> str:
        torch.manual_seed(0)
        return in_memory(hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, **settings))).sha256

    theta = {"rope_type": "default", "rope_theta": 10000.0}
    assert hash_with(rope_parameters=theta) == hash_with(rope_parameters=theta)
    assert hash_with(rope_parameters=theta) != hash_with(rope_parameters={**theta, "rope_theta": 500.0})


def test_saving_a_model_does_not_change_its_hash(tmp_path: Any) -> None:
    model = family("Llama").model()
    before = in_memory(model).sha256
    model.save_pretrained(tmp_path)
    assert in_memory(model).sha256 == before
