"""The tap with unusual layouts, low precision and refusals; it keeps no tensors."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.weights import weights
from attnscope.hf.intercepting.masks import dense_mixed, dense_pattern
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.hf.tapping.verify import verify
from tests.hf.families import DECODER_TOKENS, FAMILIES, GROUPED, TEXT


def family(name: str) -> Any:
    return next(f for f in FAMILIES if f.name == name)


class Repeated(nn.Module):
    """One block that runs as many times as the caller wants."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)

    def forward(self, x: Tensor, times: int = 1) -> Tensor:
        for _ in range(times):
            x = self.layer(x)
        return x


def frames_of(model: nn.Module, batch: dict[str, Any], **more: Any) -> list[Frame]:
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, anatomy(model, more.pop("example", None)), frames.append, **more):
        model(**batch)
    return frames


def test_streams_are_the_hidden_states_of_the_model() -> None:
    model, batch = family("Llama").model(), family("Llama").batch()
    streams = [f.stream for f in frames_of(model, batch) if f.site == "stream"]  # type: ignore[union-attr]
    states = model(**batch, output_hidden_states=True).hidden_states
    for stream, state in zip(streams[:-1], states[:-1], strict=True):
        assert torch.equal(stream, state)
    # The last hidden state is after the final norm, the last stream before it.
    assert torch.equal(model.model.norm(streams[-1]), states[-1])


def test_patterns_are_those_of_eager_attention() -> None:
    model, batch = family("Llama").model(), family("Llama").batch("left")
    seen = [f for f in frames_of(model, batch) if isinstance(f, AttentionFrame)]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    for frame, expected in zip(seen, maps, strict=True):
        difference = (dense_pattern(frame.scores) - expected).transpose(1, 2)[frame.query_mask]
        assert float(difference.abs().max()) < 1e-6


def test_the_implementation_makes_no_difference() -> None:
    model, batch = family("Mistral").model(), family("Mistral").batch("right")
    fused = [f for f in frames_of(model, batch) if isinstance(f, AttentionFrame)]
    model.set_attn_implementation("eager")
    eager = [f for f in frames_of(model, batch) if isinstance(f, AttentionFrame)]
    for one, other in zip(fused, eager, strict=True):
        assert (one.scores.causal, one.scores.window) == (other.scores.causal, other.scores.window) == (True, 4)
        assert one.scores.lse is not None
        assert other.scores.lse is None
        difference = dense_mixed(one.scores, one.value) - dense_mixed(other.scores, other.value)
        assert float(difference[one.query_mask].abs().max()) < 1e-5


def test_frames_hold_soft_caps_and_learned_sinks() -> None:
    capped = [f for f in frames_of(family("Gemma2").model(), family("Gemma2").batch()) if f.site == "self"]
    assert all(f.scores.softcap == 2.0 for f in capped)  # type: ignore[union-attr]
    model = family("gpt_oss").model()
    sunk = [f for f in frames_of(model, family("gpt_oss").batch()) if isinstance(f, AttentionFrame)]
    for layer, frame in enumerate(sunk):
        assert frame.scores.sinks is not None
        assert torch.equal(frame.scores.sinks, model.model.layers[layer].self_attn.sinks.detach())


def test_own_pattern_is_used_if_logits_do_not_follow_from_queries_and_keys() -> None:
    """The model's own pattern is used and verified."""
    from transformers.models.llama import modeling_llama

    original = modeling_llama.eager_attention_forward

    def sharpened(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        return original(module, query * query.abs(), key, value, mask, **more)

    model = family("Llama").model()
    model.set_attn_implementation("eager")
    modeling_llama.eager_attention_forward = sharpened
    try:
        found = anatomy(model)
        result = verify(model, family("Llama").batch(), found)
    finally:
        modeling_llama.eager_attention_forward = original
    assert not any(site.rebuilt for site in found.sites)
    assert result.passed, result.sentence


def test_shared_block_counts_once_for_every_call() -> None:
    found = anatomy(family("ALBERT").model())
    assert len({block.path for block in found.stacks[0].blocks}) == 1
    assert [block.nth for block in found.stacks[0].blocks] == [0, 1]


@pytest.mark.parametrize("norm_first", [False, True])
def test_sequence_first_encoders_give_batch_first_frames(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=False, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[1, 7:] = True
    batch = {"src": torch.randn(9, 3, 16), "src_key_padding_mask": padding}
    found = anatomy(model, batch)
    assert found.stacks[0].sequence_first
    assert {b.writes.norm for b in found.stacks[0].blocks} == {"pre" if norm_first else "post"}
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, found, frames.append):
        model(**batch)
    assert all(f.stream.shape == (3, 9, 16) for f in frames if isinstance(f, StreamFrame))
    assert all(torch.equal(f.token_mask, ~padding) for f in frames if isinstance(f, StreamFrame))
    assert verify(model, batch, found).passed


def test_torch_decoder_has_cross_attention_to_memory() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 4, 24, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    batch = {"tgt": torch.randn(2, 5, 16), "memory": torch.randn(2, 8, 16)}
    found = anatomy(model, batch)
    assert [(s.layer, s.site, s.keys_from) for s in found.sites] == [
        (0, "self", "model"),
        (0, "cross", "memory"),
        (1, "self", "model"),
        (1, "cross", "memory"),
    ]
    assert {b.writes.count for b in found.stacks[0].blocks} == {3}
    assert verify(model, batch, found).passed
    memory = torch.ones(2, 8, dtype=torch.bool)
    memory[0, 6:] = False
    frames = frames_of(model, {**batch, "memory_key_padding_mask": ~memory}, example=batch)
    crossed = [f for f in frames if f.site == "cross"]
    assert all(torch.equal(f.key_mask, memory) for f in crossed)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["Llama", "BERT", "GPT-NeoX", "Gemma2", "T5", "Bloom"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    case = family(name)
    model = case.model().to(dtype)
    found = anatomy(model)
    assert {b.writes.norm for s in found.stacks for b in s.blocks} == {case.norm}
    assert {str(s.projections) for s in found.sites} == {case.weights}
    # Left padding in float64 makes NaN in some models themselves: the lowest float64 plus a mask overflows.
    result = verify(model, case.batch("left" if dtype == torch.bfloat16 else "none"), found)
    assert result.passed, result.sentence


def test_frames_with_gradients_on_are_detached() -> None:
    model, batch = family("GPT-2").model(), family("GPT-2").batch()
    found = anatomy(model)
    frames: list[Frame] = []
    with tap(model, found, frames.append):
        logits = model(**batch).logits
    assert logits.requires_grad
    for frame in frames:
        held = [frame.stream] if isinstance(frame, StreamFrame) else [frame.scores.query, frame.value, frame.mixed]
        assert not any(t.requires_grad for t in held)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.transformer.h.parameters())


def test_nothing_is_kept_after_the_context() -> None:
    model, batch = family("Llama").model(), family("Llama").batch("left")
    found = anatomy(model)
    held: list[weakref.ref[Tensor]] = []

    def receive(frame: Frame) -> None:
        held.append(weakref.ref(frame.stream if isinstance(frame, StreamFrame) else frame.scores.query))

    with torch.inference_mode(), tap(model, found, receive):
        model(**batch)
    gc.collect()
    assert held
    assert all(reference() is None for reference in held)


def test_token_masks_of_the_caller_take_precedence() -> None:
    model, batch = family("ViT").model(), family("ViT").batch()
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 4:] = False
    frames = frames_of(model, batch, token_masks={"model": mask})
    for frame in frames:
        seen = frame.token_mask if isinstance(frame, StreamFrame) else frame.key_mask
        assert torch.equal(seen, mask)


def test_encoder_and_decoder_masks_do_not_mix() -> None:
    case = family("T5")
    batch = case.batch("right")
    # As many encoder tokens as decoder tokens: only the names of the arguments tell them apart.
    batch["input_ids"] = batch["input_ids"][:, :DECODER_TOKENS]
    batch["attention_mask"] = torch.ones(2, DECODER_TOKENS, dtype=torch.long)
    batch["attention_mask"][0, 4:] = 0
    frames = frames_of(case.model(), batch)
    for frame in frames:
        if isinstance(frame, StreamFrame):
            assert bool(frame.token_mask.all()) == (frame.stack == "decoder")
        elif frame.site == "cross":
            assert bool(frame.query_mask.all())
            assert not bool(frame.key_mask.all())


def test_two_forward_passes_in_one_context() -> None:
    model, batch = family("BERT").model(), family("BERT").batch()
    found = anatomy(model)
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, found, frames.append):
        model(**batch)
        half = len(frames)
        model(**batch)
    assert len(frames) == 2 * half
    assert [(f.site, f.layer) for f in frames[:half]] == [(f.site, f.layer) for f in frames[half:]]


def test_other_models_are_left_alone() -> None:
    model, other = family("Llama").model(), family("Mistral").model()
    found = anatomy(model)
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, found, frames.append):
        other(**family("Mistral").batch())
    assert frames == []


def test_attention_call_missing_from_the_probe_is_refused() -> None:
    model = Repeated().eval()
    once = anatomy(model, {"x": torch.randn(2, 5, 16)})
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, once, frames.append):
        model(torch.randn(2, 5, 16))
        refused = pytest.raises(RefusalError, match=r"made an attention call in layer\.self_attn that it did not make")
        with refused:
            model(torch.randn(2, 5, 16), times=2)


def test_skipped_attention_call_is_refused() -> None:
    model = Repeated().eval()
    twice = anatomy(model, {"x": torch.randn(2, 5, 16), "times": 2})
    assert [s.layer for s in twice.sites] == [0, 1]
    with pytest.raises(RefusalError, match="skipped attention calls that it made on the batch"):
        verify(model, {"x": torch.randn(2, 5, 16)}, twice)


@pytest.mark.parametrize("name", ["Mamba", "RWKV"])
def test_models_without_attention_are_refused_by_name(name: str) -> None:
    from tests.hf.families import REFUSED

    model = next(f for f in REFUSED if f.name == name).model()
    with pytest.raises(RefusalError, match=type(model).__name__):
        anatomy(model)


def test_partly_observed_attention_is_refused() -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    widths = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
    config = hf.PegasusXConfig(vocab_size=64, num_global_tokens=2, block_size=4, **sizes, **widths)
    with pytest.raises(RefusalError, match="PegasusXModel mixes values in"):
        anatomy(hf.PegasusXModel(config))


def test_unfit_probe_input_is_refused() -> None:
    class Picky(hf.BertModel):  # type: ignore[misc]
        def forward(self, input_ids: Tensor, colour: str) -> Tensor:
            return super().forward(input_ids)[0]

    with pytest.raises(RefusalError, match="Picky does not run on the probe input"):
        anatomy(Picky(hf.BertConfig(**TEXT)))


def test_products_in_submodules_belong_to_the_enclosing_module() -> None:
    config = hf.SqueezeBertConfig(**TEXT, embedding_size=32)
    torch.manual_seed(0)
    model = hf.SqueezeBertModel(config).eval()
    found = anatomy(model)
    assert [s.path for s in found.sites] == ["encoder.layers.0.attention", "encoder.layers.1.attention"]
    assert verify(model, family("BERT").batch("right"), found).passed


def test_models_that_draw_random_numbers_are_verified() -> None:
    config = hf.ViTMAEConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=24, patch_size=8
    )
    model = hf.ViTMAEModel(config).eval()
    before = torch.get_rng_state()
    assert verify(model, family("ViT").batch()).passed
    assert torch.equal(before, torch.get_rng_state())


def test_sinks_that_scale_the_output_are_recognised() -> None:
    """The returned pattern does not give the mixed values, so the pattern is computed from queries and keys."""
    torch.manual_seed(0)
    model = hf.GraniteSWAForCausalLM(hf.GraniteSWAConfig(**GROUPED, sliding_window=4)).eval()
    found = anatomy(model)
    assert all(site.rebuilt for site in found.sites)
    assert verify(model, family("Llama").batch("left"), found).passed


def test_a_pooling_head_beside_two_towers() -> None:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.SiglipConfig(text_config=TEXT, vision_config={**vision, "image_size": 24, "patch_size": 8})
    found = anatomy(hf.SiglipModel(config).eval())
    assert {stack.name for stack in found.stacks} == {"text", "vision"}
    assert [(s.stack, s.site, s.keys_from) for s in found.sites if s.stack == "head"] == [("head", "cross", "vision")]


def test_models_without_a_configuration_need_example_inputs() -> None:
    with pytest.raises(RefusalError, match="example_inputs"):
        anatomy(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1))


def test_batch_of_the_caller_can_be_the_example() -> None:
    model = family("Llama").model()
    ids = torch.randint(3, 64, (5, 40))
    found = anatomy(model, {"input_ids": ids})
    assert found == anatomy(model)


def test_projections_are_the_right_slices() -> None:
    llama = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)).eval()
    frame = weights(llama, anatomy(llama))[1]
    attention = llama.model.layers[1].self_attn
    assert frame.query_weight is not None
    assert frame.key_weight is not None
    assert torch.equal(frame.query_weight, attention.q_proj.weight.T.view(32, 4, 8).transpose(0, 1))
    keys = attention.k_proj.weight.T.view(32, 2, 8).transpose(0, 1).repeat_interleave(2, dim=0)
    assert torch.equal(frame.key_weight, keys)
    neox = family("GPT-NeoX").model()  # queries, keys and values of a head are adjacent
    frame = weights(neox, anatomy(neox))[0]
    fused = neox.gpt_neox.layers[0].attention.query_key_value.weight.T.view(32, 4, 3, 8)
    for index, weight in enumerate((frame.query_weight, frame.key_weight, frame.value_weight)):
        assert weight is not None
        assert torch.equal(weight, fused[:, :, index].transpose(0, 1))


def test_gains_of_query_norms_are_part_of_the_projection() -> None:
    model = family("Qwen3").model()
    frame = weights(model, anatomy(model))[0]
    attention = model.model.layers[0].self_attn
    assert frame.query_weight is not None
    expected = attention.q_proj.weight.T.view(32, 4, 8).transpose(0, 1) * attention.q_norm.weight
    assert torch.allclose(frame.query_weight, expected, atol=1e-5)


def test_residual_multipliers_are_found() -> None:
    config = hf.GraniteConfig(**GROUPED, residual_multiplier=0.25, attention_multiplier=0.3)
    torch.manual_seed(1)
    model = hf.GraniteForCausalLM(config).eval()
    found = anatomy(model)
    identities = [i for b in found.stacks[0].blocks for i in b.writes.identities]
    assert len(identities) == 4
    assert all(i.multiplier == pytest.approx(0.25, rel=1e-4) for i in identities)
    assert found.sites[0].projections.scale == pytest.approx(0.3)
    assert verify(model, family("Llama").batch(), found).passed


def test_a_block_that_overwrites_its_input_keeps_the_state_before_it() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return x.add_(self.attention(x, x, x, need_weights=False)[0])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(InPlace() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(2)
    model = Model().eval()
    x = torch.randn(2, 5, 16)
    found = anatomy(model, {"x": x})
    assert all(block.overwrites for block in found.stacks[0].blocks)
    frames: list[StreamFrame] = []

    def receive(frame: Frame) -> None:
        if isinstance(frame, StreamFrame):
            frames.append(
                StreamFrame(
                    frame.stack,
                    frame.site,
                    frame.layer,
                    frame.stream.clone(),
                    frame.token_mask,
                    frame.stream_before,
                )
            )

    with torch.no_grad(), tap(model, found, receive):
        model(x)
    assert torch.equal(frames[0].stream, x)
    for before, after in pairwise(frames):
        assert after.stream_before is not None
        assert torch.equal(after.stream_before, before.stream)
        assert not torch.equal(after.stream, before.stream)


def test_importing_changes_nothing() -> None:
    """Importing the tap does not change torch or transformers."""
    import subprocess
    import sys

    code = """
import torch, torch.nn.functional as F
from transformers.modeling_utils import AttentionInterface as A

def state():
    layers = torch.nn.Module.__call__, torch.nn.MultiheadAttention.forward
    return (A.get_interface, dict(A._global_mapping), F.scaled_dot_product_attention, F.softmax, *layers,
            torch._C._len_torch_function_stack(), torch.backends.mha.get_fastpath_enabled())

before = state()
import attnscope.hf.tapping.tap, attnscope.hf.tapping.verify
assert before == state()
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_one_anatomy_fits_batches_of_any_length() -> None:
    """The probe has seven tokens; its anatomy also fits one token and forty."""
    model = hf.BertModel(hf.BertConfig(**TEXT)).eval()
    found = anatomy(model)
    for tokens in (1, 2, 7, 40):
        assert verify(model, {"input_ids": torch.randint(0, 64, (1, tokens))}, found).passed
