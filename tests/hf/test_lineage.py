"""Self- and cross-attention are recognised by the origin of the values, and stacks are named by their paths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.stacks import stack_names
from tests.hf.tiny import tiny


def places(model_type: str) -> dict[tuple[str, str], list[int]]:
    model, batch = tiny(model_type)
    found: dict[tuple[str, str], list[int]] = {}
    for site in anatomy(model, batch).sites:
        found.setdefault((site.stack, site.site), []).append(site.layer)
    return found


def test_pooled_keys_are_of_the_same_stream() -> None:
    assert places("pvt") == {("model", "uneven"): [0, 1, 2, 3, 4, 5], ("model", "self"): [6, 7]}


def test_pooled_queries_are_of_the_same_stream() -> None:
    found = places("funnel")
    assert found == {("encoder", "self"): [0, 1, 3], ("encoder", "uneven"): [2], ("decoder", "self"): [0, 1]}


def test_ngram_streams_are_self_attention() -> None:
    found = places("prophetnet")
    assert found[("decoder", "cross")] == found[("decoder", "self")] == found[("decoder", "uneven")] == [0, 1]
    assert found[("encoder", "self")] == [0, 1]


def test_two_streams_that_attend_to_each_other_have_a_stack_each() -> None:
    found = places("lxmert")
    crossing = {place: layers for place, layers in found.items() if place[1] == "cross"}
    assert crossing == {("visual_attention", "cross"): [0, 1], ("visual_attention (2)", "cross"): [0, 1]}
    assert found[("lang_self_att", "self")] == found[("visn_self_att", "self")] == [0, 1]


def test_attention_without_a_stream_of_tokens_is_numbered_by_its_list() -> None:
    found = places("sam")  # its stream is a picture, not a row of tokens
    assert found.pop(("mask_decoder.transformer", "cross")) == [0]
    assert found == {
        ("vision", "self"): [0, 1],
        ("self_attn", "self"): [0, 1],
        ("cross_attn_token_to_image", "cross"): [0, 1],
        ("cross_attn_image_to_token", "cross"): [0, 1],
    }


@pytest.mark.parametrize("model_type", ["bart", "t5", "informer"])
def test_an_encoder_as_long_as_its_decoder_is_still_another_stack(model_type: str) -> None:
    model, batch = tiny(model_type)
    if "input_ids" in batch:
        batch["decoder_input_ids"] = batch["input_ids"].flip(1)
    sites = anatomy(model, batch).sites
    decoder = [site.site for site in sites if site.stack == "decoder"]
    assert decoder == ["self", "cross"] * (len(decoder) // 2)
    assert {site.keys_from for site in sites if site.site == "cross"} == {"encoder"}


def test_blocks_that_change_the_shape_of_their_stream_keep_their_number() -> None:
    model, batch = tiny("hiera")
    found = anatomy(model, batch)
    assert [site.layer for site in found.sites] == list(range(8))
    assert found.without_stream("model") == (2, 4, 6) == tuple(s.layer for s in found.sites if s.site == "uneven")
    assert any(note.startswith("Blocks 2, 4, 6 of the model") for note in found.notes)
    with pytest.raises(RefusalError, match="Blocks 2, 4, 6 of HieraModel"):
        attnscope.collapse(model, [batch], bounds=False)


def test_uneven_self_attention_is_measured_without_a_diagonal() -> None:
    model, batch = tiny("pvt")
    survey = attnscope.scan(model, [batch])
    assert ("model", "uneven") in survey.places("entropy")
    assert survey.places("self_attention") == (("model", "self"),)
    assert any("different numbers of queries and keys" in note for note in survey.provenance["notes"])


class HalvesAttention(nn.Module):
    """Attention that reorders its softmax and multiplies it in two halves, which is not supported."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        pattern = (heads @ heads.mT).softmax(-1).transpose(-1, -2).contiguous().transpose(-1, -2)
        half = x.shape[1] // 2
        mixed = pattern[..., :half] @ heads[..., :half, :] + pattern[..., half:] @ heads[..., half:, :]
        return mixed.transpose(1, 2).flatten(2)


class Partly(nn.Module):
    """A model with one block of supported and one of unsupported attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), HalvesAttention()])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x) + self.layers[1](self.layers[0](x))


def test_unobserved_attention_is_noted_as_incomplete() -> None:
    notes = anatomy(Partly().eval(), {"x": torch.randn(2, 6, 16)}).notes
    assert any(note.startswith("INCOMPLETE") and "HalvesAttention" in note for note in notes), notes


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("patchtsmixer", r"attention of \w+ in PatchTSMixerGatedAttention .*gates over channels"),
        ("reformer", r"attention of \w+ in ReformerAttention.* no softmax over keys"),
        ("rwkv", r"attention of \w+ in RwkvSelfAttention .*no softmax over keys"),
        ("mamba", "no softmax attention .its blocks mix tokens by MambaMixer."),
    ],
)
def test_refusals_name_what_is_not_supported(model_type: str, words: str) -> None:
    model, batch = tiny(model_type)
    with pytest.raises(RefusalError, match=words):
        attnscope.scan(model, [batch])


def test_blocks_missing_from_the_run_are_noted() -> None:
    model, batch = tiny("git")  # pictures are optional, and the batch has none
    batch.pop("pixel_values", None)
    notes = anatomy(model, batch).notes
    assert any("2 blocks in vision_config" in note for note in notes)
    assert not anatomy(*tiny("bert")).notes


def test_no_gradient_is_left_behind() -> None:
    model, batch = tiny("bart")
    with torch.no_grad():
        before = model(**batch).logits
        anatomy(model, batch)
        assert torch.equal(model(**batch).logits, before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["model.layers"], ["model"]),
        (["encoder.block", "decoder.block"], ["encoder", "decoder"]),
        (["model.encoder.layers", "model.decoder.layers"], ["encoder", "decoder"]),
        (["text_model.encoder.layers", "vision_model.encoder.layers"], ["text", "vision"]),
        (["language_model.layers", "vision_tower.encoder.layers"], ["language", "vision"]),
        (["model.text_model.layers", "model.text_tower.layers"], ["text_model", "text_tower"]),
        (["", "encoder"], ["model", "encoder"]),
        (["vision.layers", "vision.head", "text.layers"], ["layers", "head", "text"]),
    ],
)
def test_stacks_are_named_after_the_first_part_of_their_path_that_differs(paths: list[str], names: list[str]) -> None:
    containers = [tuple(p for p in path.split(".") if p) for path in paths]
    assert [stack_names(containers)[c] for c in containers] == names
