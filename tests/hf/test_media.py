"""Pictures in text: which tokens are pictures, and attention between both kinds against the model's own patterns."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.core.errors import RefusalError
from tests.hf.tiny import tiny

ROUNDING = 64 * float(np.finfo(np.float32).eps)
OWN = ["media_attention", "media_sink", "entropy"]


@cache
def looked_at(model_type: str) -> tuple[Any, dict[str, Tensor], Any]:
    model, batch = tiny(model_type)
    model.set_attn_implementation("eager")  # returns patterns; PaliGemma has another mask with sdpa
    return model, batch, attnscope.scan(model, [batch], measures=OWN)


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "qwen2_vl", "paligemma"])
def test_shares_equal_those_of_the_models_own_patterns(model_type: str) -> None:
    model, batch, survey = looked_at(model_type)
    (place,) = survey.places("media_attention", "from_text")
    assert place[0] in ("language", "model")  # not in the stack that reads only pictures
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    pictured = batch["input_ids"] == model.config.image_token_id
    assert bool(pictured.any(dim=1).all())
    for layer, pattern in enumerate(maps):
        share = (pattern.double() * pictured[:, None, None, :]).sum(-1).numpy()  # [batch, head, query]
        words = (~pictured).numpy()
        for part, rows in (("from_text", words), ("from_media", ~words)):
            expected = np.mean([share[i][:, rows[i]].mean(-1) for i in range(len(rows))], axis=0)
            found = survey.column("media_attention", part, *place)[layer].moments.mean
            # Two float32 softmaxes of the same logits over at most 28 keys.
            np.testing.assert_allclose(found, expected, atol=ROUNDING)
        received = pattern.double().mean(-2)
        for part, keys in (("media", pictured), ("text", ~pictured)):
            most = received.masked_fill(~keys[:, None], 0.0).amax(-1).mean(0).numpy()
            found = survey.column("media_sink", part, *place)[layer].moments.mean
            np.testing.assert_allclose(found, most, atol=ROUNDING)


def test_uniform_attention_counts_visible_tokens_of_each_row() -> None:
    _, batch, survey = looked_at("llava")
    tokens, pictures = batch["input_ids"].shape[1], 16  # the picture comes first, and the model is causal
    expected = np.mean([pictures / (row + 1) for row in range(pictures, tokens)])
    found = survey.values("media_attention", "from_text_if_uniform", stack="language")
    np.testing.assert_allclose(found, expected, atol=ROUNDING)


def test_text_alone_has_no_media_measures() -> None:
    model, batch = tiny("bert")
    survey = attnscope.scan(model, [batch])
    assert not {"media_attention", "media_sink"} & set(survey.cards)
    assert "not_measured" not in survey.provenance
    with pytest.raises(RefusalError, match="media not found"):
        attnscope.scan(model, [batch], measures=["media_attention"])


def test_batch_with_a_text_only_sequence_is_left_out() -> None:
    model, batch, survey = looked_at("llava")
    mixed = {**batch, "input_ids": batch["input_ids"].clone(), "pixel_values": batch["pixel_values"][:1]}
    mixed["input_ids"][1, :16] = 5
    both = attnscope.scan(model, [batch, mixed], measures=OWN)
    cells = (s.column("media_attention", "from_text", "language", "self")[0] for s in (survey, both))
    assert [int(np.max(cell.moments.count)) for cell in cells] == [2, 2]
    assert int(np.max(both.column("entropy", "value", "language", "self")[0].moments.count)) == 4
