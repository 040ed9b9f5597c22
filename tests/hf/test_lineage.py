"""Self or cross is told by what values descend from, whatever the lengths are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
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


def test_streams_of_ngrams_are_no_cross_attention() -> None:
    found = places("prophetnet")
    assert found[("decoder", "cross")] == found[("decoder", "self")] == found[("decoder", "uneven")] == [0, 1]
    assert found[("encoder", "self")] == [0, 1]


def test_two_streams_that_look_at_each_other_have_a_stack_each() -> None:
    found = places("lxmert")
    crossing = {place: layers for place, layers in found.items() if place[1] == "cross"}
    assert crossing == {("visual_attention", "cross"): [0, 1], ("visual_attention (2)", "cross"): [0, 1]}
    assert found[("lang_self_att", "self")] == found[("visn_self_att", "self")] == [0, 1]


def test_attention_without_a_stream_of_tokens_is_numbered_by_its_list() -> None:
    found = places("sam")  # its pictures stay pictures from block to block
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
    assert any("unequally many queries and keys" in note for note in survey.provenance["notes"])


class HalvesAttention(nn.Module):
    """Softmax over all keys, turned about on its way to two products with half of them each: not followed."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        pattern = (heads @ heads.mT).softmax(-1).transpose(-1, -2).contiguous().transpose(-1, -2)
        half = x.shape[1] // 2
        mixed = pattern[..., :half] @ heads[..., :half, :] + pattern[..., half:] @ heads[..., half:, :]
        return mixed.transpose(1, 2).flatten(2)


class Partly(nn.Module):
    """A block whose attention is seen, and one whose attention is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), HalvesAttention()])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x) + self.layers[1](self.layers[0](x))


def test_part_of_a_model_that_is_not_seen_is_said_to_be_missing() -> None:
    notes = anatomy(Partly().eval(), {"x": torch.randn(2, 6, 16)}).notes
    assert any(note.startswith("INCOMPLETE") and "HalvesAttention" in note for note in notes), notes


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("patchtsmixer", "attends in PatchTSMixerGatedAttention.*gates over channels"),
        ("reformer", "attends in ReformerAttention.*no softmax over keys"),
        ("rwkv", "attends in RwkvSelfAttention.*no softmax over keys"),
        ("mamba", "no softmax attention .its blocks mix tokens by MambaMixer."),
    ],
)
def test_refusals_name_what_is_not_supported(model_type: str, words: str) -> None:
    model, batch = tiny(model_type)
    with pytest.raises(RefusalError, match=words):
        attnscope.scan(model, [batch])


def test_configurations_that_promise_more_are_quoted() -> None:
    model, batch = tiny("git")  # pictures are an option, and none are given
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
