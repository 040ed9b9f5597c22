"""The operator of real pretrained models: T x0 + b is the model, without b it is not, and T is not the Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnscope
from attnscope.hf.loading.load import load
from tools.fetch_models import path as material
from tools.real_models import dinov2, photographs

pytestmark = pytest.mark.real

ALLOWED = {"float64": 1e-10, "float32": 1e-4}  # of the largest number of the output
TEXT = "Paris is the capital of France, and Rome"


def of_text(name: str, tokens: int) -> tuple[Any, dict[str, torch.Tensor]]:
    loaded = load(material(name), allow_pickle=True)
    tokenizer = loaded.tokenizer
    ids = torch.arange(3, 3 + tokens) if tokenizer is None else torch.tensor(tokenizer(TEXT)["input_ids"][:tokens])
    return loaded, {"input_ids": ids[None]}


def of_photograph() -> tuple[Any, dict[str, torch.Tensor]]:
    return dinov2(), {"pixel_values": photographs(42)["pixel_values"][:1]}


MODELS: dict[str, Callable[[], tuple[Any, dict[str, torch.Tensor]]]] = {
    "BERT": lambda: of_text("minilm", 12),
    "GPT-2": lambda: of_text("microformer", 12),
    "Llama": lambda: of_text("smollm2", 4),  # every part is there; cost grows with tokens
    "ViT": of_photograph,
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_model_and_not_without_its_offset(name: str) -> None:
    model, batch = MODELS[name]()
    for dtype, allowed in ALLOWED.items():
        op = attnscope.operator(model, batch, dtype=dtype)
        made = op @ op.input
        whole, without = ((one - op.output).abs().max() / op.output.abs().max() for one in (made + op.offset, made))
        assert float(whole) <= allowed
        if name == "Llama":  # no bias and no shift of a norm anywhere
            assert not op.offset.any()
        else:
            assert float(without) > 0.01  # far above what is allowed
            assert op.offset_share > 0.01
        if dtype == "float32":
            apart = op.beside_jacobian(probes=4)
            assert apart.distance > 10 * apart.distance_error
            assert apart.cosine < 0.95
