"""On real weights, variants that start as the identity change no logit until they are trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.hf.loading.load import load
from tools.fetch_models import unquantised

pytestmark = pytest.mark.real
TEXT = "The capital of Italy is Rome, and the river that runs through it is the Tiber."


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("minilm", ("gated_output", "learned_sink", "value_residual", "attn_scale")),
        ("smollm2", ("gated_output", "attn_scale")),
    ],
)
@torch.no_grad()
def test_installed_variants_change_no_logit_before_training(
    name: str, variants: tuple[str, ...], material: Callable[[str], Path]
) -> None:
    loaded = load(unquantised(name) if name == "smollm2" else material(name))
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer(TEXT)["input_ids"]])

    def answer() -> torch.Tensor:
        given = loaded.model(input_ids=ids)
        found: torch.Tensor = given.logits if hasattr(given, "logits") else given.last_hidden_state
        return found

    own = answer()
    for variant in variants:
        with attnscope.installed(loaded, variant) as treated:
            assert treated.parameters()
            assert float((answer() - own).abs().max()) <= 1e-6
    assert torch.equal(answer(), own)
