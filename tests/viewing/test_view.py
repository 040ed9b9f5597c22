"""`view` against eager attention: the weights a model itself would give, on every kind of attention there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.experts import with_plain_experts
from attnscope.records.quantised import STEPS
from attnscope.records.view import View
from tests.hf.families import FAMILIES
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5

BY_NAME = {family.name: family for family in FAMILIES}
TEXT = "Which head looks where?"
# What eager attention hands out, and the part of a view that it is.
ATTENTIONS = {
    "model": "attentions",
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "decoder cross": "cross_attentions",
}


def allowed(weights: np.ndarray) -> np.ndarray:
    """Half a step of 1/255 of the row's largest weight. Both sides are computed in float64; what is kept is float32,
    whose rounding is 2^-24 of a weight below 1: of the scale, of the step, and of its product with the code."""
    bound: np.ndarray = weights.max(-1, keepdims=True) / (2 * STEPS) + 2.0**-22
    return bound


def given(name: str, tokens: int = 11) -> dict[str, Any]:
    ids = torch.arange(3, 3 + tokens)[None] * 5 % 61
    return {"input_ids": ids, "decoder_input_ids": ids[:, :6]} if name == "T5" else {"input_ids": ids}


# Grouped heads, a sliding window, soft-capped logits, learned sinks, and position bias with cross-attention.
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "Mistral", "Gemma2", "gpt_oss", "T5"])
def test_maps_are_those_of_eager_attention(name: str) -> None:
    model = BY_NAME[name].model()
    with_plain_experts(model)  # fused ones know no float64
    model.double()
    view = attnscope.view(model, given(name))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(**given(name), output_attentions=True)
    compared = 0
    for part in view.parts:
        for layer, weights in enumerate(getattr(eager, ATTENTIONS[part.name])):
            own = weights[0].numpy()
            for head, one in enumerate(own):
                assert (np.abs(view.attention(layer, head, part.name) - one) <= allowed(one)).all()
                compared += 1
            mean = view.attention(layer, part=part.name)
            assert (np.abs(mean - own.mean(0)) <= allowed(own).mean(0)).all()  # a mean of errors
    assert compared == len(view.heads) > 0
    assert 0 < view.error <= 1 / (2 * STEPS) + 2.0**-22
