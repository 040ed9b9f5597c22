"""Unusual batches: windows, pictures in text, floating-point inputs of another precision, any gradient mode."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting.owners import every_tensor
from tests.hf.tiny import tiny


def one_row(batch: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: rows[row : row + 1] for name, rows in batch.items()}


@pytest.mark.parametrize("model_type", ["swinv2", "timesformer", "patchtst"])
def test_rows_of_a_sequence_are_assigned_to_it(model_type: str) -> None:
    """Two sequences give the same numbers alone and in one batch."""
    model, batch = tiny(model_type)
    together = attnscope.scan(model, [batch], measures=["entropy", "most_received"])
    apart = attnscope.scan(model, [one_row(batch, 0), one_row(batch, 1)], measures=["entropy", "most_received"])
    for measure, part in (("entropy", "value"), ("most_received", "value")):
        for stack, site in together.places(measure, part):
            cells = (s.column(measure, part, stack, site) for s in (together, apart))
            for one, other in zip(*(c.values() for c in cells), strict=True):
                assert int(np.max(one.moments.count)) == int(np.max(other.moments.count)) == 2
                for statistic in ("mean", "minimum", "maximum"):
                    wanted = getattr(other.moments, statistic)
                    np.testing.assert_allclose(getattr(one.moments, statistic), wanted, rtol=1e-5)


def test_placeholder_tokens_are_counted() -> None:
    model, batch = tiny("llava")
    pictured = int((batch["input_ids"] == model.config.image_token_id).sum())
    assert pictured
    notes = attnscope.scan(model, [batch]).provenance["notes"]
    assert any(note.startswith(f"{pictured} of {batch['input_ids'].numel()} tokens") for note in notes)


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "layoutlm"])
def test_a_batch_that_cannot_be_cut_is_probed_as_it_is(model_type: str) -> None:
    model, batch = tiny(model_type)
    survey = attnscope.scan(model, [batch])
    assert survey.provenance["verify"]["passed"]
    assert survey.places("entropy")


def step(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Run one training step on the sum of the model's outputs."""
    model.train()
    output = next(t for t in every_tensor(model(**batch)) if t.requires_grad)
    output.float().square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    assert any(p.grad is not None and bool(p.grad.abs().max() > 0) for p in model.parameters())


@pytest.mark.parametrize("model_type", ["beit", "data2vec-vision", "swinv2", "bert", "jamba", "t5"])
def test_a_model_can_be_trained_after_it_was_measured(model_type: str) -> None:
    model, batch = tiny(model_type)
    attnscope.scan(model, [batch])
    with suppress(RefusalError):  # families without paths or collapse refuse, and must leave no changes either
        attnscope.collapse(model, [batch], bounds=False)
    with suppress(RefusalError):
        attnscope.paths(model, one_row(batch, 0), draws=0, top=1)
    step(model, batch)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_paths_do_not_depend_on_the_gradient_mode(mode: Any) -> None:
    model, batch = tiny("bert")
    outside = attnscope.paths(model, one_row(batch, 0), draws=2, top=2)
    with mode():
        inside = attnscope.paths(model, {n: t.clone() for n, t in one_row(batch, 0).items()}, draws=2, top=2)
    assert inside.head_values == outside.head_values


def test_collapse_casts_floating_point_inputs() -> None:
    model, batch = tiny("whisper")
    assert batch["input_features"].dtype == torch.float32
    found = attnscope.collapse(model, [batch], variants=["whole"], bounds=False)
    assert found.provenance["dtype"] == "float64"


def test_experts_collapse_in_float64() -> None:
    model, batch = tiny("mixtral")
    before = model.config._experts_implementation
    found = attnscope.collapse(model, [batch], variants=["whole"], bounds=False)
    assert found.provenance["dtype"] == "float64"
    assert model.config._experts_implementation == before


def test_model_that_fails_in_float64_is_measured_in_float32_with_a_note() -> None:
    model, batch = tiny("fsmt")
    found = attnscope.collapse(model, [batch], variants=["whole"], bounds=False)
    assert found.provenance["dtype"] == "float32"
    assert any("measured in float32" in note for note in found.notes)


def test_a_cache_of_keys_does_not_leak_between_the_runs_of_paths() -> None:
    model, batch = tiny("decision_transformer")  # only its configuration has use_cache, not its forward
    report = attnscope.paths(model, one_row(batch, 0), draws=0, top=1)
    assert report.linear_difference < 1e-12
    assert model.config.use_cache is True
