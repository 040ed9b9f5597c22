"""Capturing a run keeps the output bit for bit, keeps fused attention on, and restores the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.tapping.capture import asked_with, capture, gradient_under
from attnscope.hf.tapping.entrances import entrances
from tests.explanations.runs import BY_NAME, TEXTS, batch_of, captured, model_of, number, places_of
from tests.specimens import tiny_llama


@pytest.mark.parametrize("name", TEXTS)
def test_output_is_unchanged_and_gradients_equal_autograd(name: str) -> None:
    model, batch = model_of(name, torch.float32), batch_of(name)
    run, _ = captured(name)
    with torch.no_grad():
        own = first_output(model(**batch))
    assert torch.equal(run.output, own)
    found, places = places_of(name)
    assert len(run.calls) == len(found.sites)
    assert {place.stack for place in places} == set(run.embedding)
    for call in run.calls:
        batch_size, heads, queries, _ = call.scores.query.shape
        assert call.gradient.shape == (batch_size, queries, heads, call.value.shape[-1])
    again = gradient_under(model, batch, places, number)
    for stack, gradient in again.items():
        torch.testing.assert_close(gradient, run.embedding_gradient[stack])
        assert float(gradient.abs().max()) > 0
    with torch.no_grad():
        same = asked_with(model, batch, places, number, {k: v[None] for k, v in run.embedding.items()})
    assert float(same) == run.value


def test_the_fused_kernel_is_called_and_no_map_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of("Llama", torch.float32), batch_of("Llama")
    found, places = places_of("Llama")
    monkeypatch.setattr(F, "softmax", lambda *a, **k: pytest.fail("a map was made"))
    monkeypatch.setattr(torch.Tensor, "softmax", lambda *a, **k: pytest.fail("a map was made"))
    run = capture(model, batch, found, places, number)
    assert all(call.scores.pattern is None and call.scores.lse is not None for call in run.calls)


def test_model_is_restored_after_a_failure() -> None:
    model = tiny_llama().train()
    batch = {"input_ids": torch.tensor([[1, 5, 9, 2]])}
    found = anatomy(model, batch)
    places = entrances(model, batch, found)
    before = _state(model)
    assert any(parameter.requires_grad for parameter in model.parameters())

    def fails(output: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture(model, batch, found, places, fails)
    assert _state(model) == before
    capture(model, batch, found, places, number)
    gradient_under(model, batch, places, number)
    assert _state(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


def _state(model: torch.nn.Module) -> list[Any]:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()]
    forwards = ["forward" in vars(m) for m in model.modules()]
    wanting = [parameter.requires_grad for parameter in model.parameters()]
    return [hooks, forwards, wanting, model.config.use_cache]  # type: ignore[union-attr]


def test_a_gradient_that_is_not_a_number_names_the_block() -> None:
    model, batch = BY_NAME["GPT-2"].model().requires_grad_(False), batch_of("GPT-2")
    found, places = places_of("GPT-2")

    class Breaking(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            return gradients[0] * torch.nan

    broken: Any = model
    broken.transformer.h[0].attn.c_proj.register_forward_hook(lambda m, a, output: Breaking.apply(output))
    with pytest.raises(RefusalError, match=r"NaN or infinite at the attention of block 0 \(model\)"):
        capture(model, batch, found, places, number)


def test_output_without_a_gradient_is_refused() -> None:
    found, places = places_of("GPT-2")
    with pytest.raises(RefusalError, match="has no gradient"):
        capture(model_of("GPT-2", torch.float32), batch_of("GPT-2"), found, places, lambda out: out.detach()[:, -1, 0])


def test_tokens_that_are_not_looked_up_are_refused() -> None:
    found, _ = places_of("GPT-2")
    with pytest.raises(RefusalError, match="has no input_ids"):
        entrances(model_of("GPT-2", torch.float32), {"inputs_embeds": torch.zeros(1, 3, 32)}, found)


def test_position_table_is_not_mistaken_for_the_token_table() -> None:
    """With tokens 0, 1, 2, ... the position table has the same input as the token table."""
    model = model_of("GPT-2", torch.float32)
    ids = torch.arange(6)[None]
    (place,) = entrances(model, {"input_ids": ids}, places_of("GPT-2")[0])
    assert place.path == "transformer.wte"
