"""The verifier detects every kind of error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.example import run
from attnscope.hf.tapping import tap as tap_module
from attnscope.hf.tapping import verify as verify_module
from attnscope.hf.tapping.verify import verify
from tests.hf.families import FAMILIES


def family(name: str) -> Any:
    return next(f for f in FAMILIES if f.name == name)


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (lambda s: replace(s, scale=s.scale * 1.1), "mixed"),
        (lambda s: replace(s, causal=False), "mixed"),
        (lambda s: replace(s, query=s.query.flip(1)), "mixed"),
        (lambda s: replace(s, allowed=None), "padding"),
        (lambda s: replace(s, pattern=torch.full((2, 4, 11, 11), 1 / 11)), "future"),
        (lambda s: replace(s, causal=False), "future"),
        (lambda s: replace(s, pattern=torch.full((2, 4, 11, 11), 0.2)), "row sums"),
    ],
)
def test_wrong_scores_are_caught(monkeypatch: pytest.MonkeyPatch, wrong: Any, check: str) -> None:
    case = family("Llama")
    original = AttentionFrame

    def bent(**fields: Any) -> AttentionFrame:
        return original(**{**fields, "scores": wrong(fields["scores"])})

    monkeypatch.setattr(tap_module, "AttentionFrame", bent)
    result = verify(case.model(), case.batch("left"))
    assert not result.passed
    assert not result.checks[check].passed
    assert "NOT verified" in result.sentence
    assert check in result.sentence


def bend(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    original = AttentionFrame
    monkeypatch.setattr(tap_module, "AttentionFrame", lambda **fields: original(**{**fields, **wrong(fields)}))


def test_weight_on_padding_is_caught_in_low_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    case = family("Llama")
    model = case.model().to(torch.bfloat16)
    assert verify(model, case.batch("left")).checks["padding"].passed

    def leaking(fields: dict[str, Any]) -> dict[str, Any]:
        scores = fields["scores"]
        weak = torch.zeros_like(scores.allowed, dtype=torch.float32).masked_fill(~scores.allowed, -10.0)
        return {"scores": replace(scores, allowed=None, bias=weak)}

    bend(monkeypatch, leaking)
    leak = verify(model, case.batch("left")).checks["padding"]
    assert 1e-6 < leak.largest < 1e-2
    assert not leak.passed


@pytest.mark.parametrize("name", ["Llama", "MPNet"])
def test_padding_that_counts_as_real_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    bend(monkeypatch, lambda fields: {"key_mask": torch.ones_like(fields["key_mask"])})
    check = verify(family(name).model(), family(name).batch("left")).checks["unseen keys"]
    assert check.largest == 3
    assert not check.passed


def test_causality_that_the_probe_did_not_find_is_caught() -> None:
    case = family("Llama")
    model = case.model()
    found = anatomy(model)
    loose = replace(found, sites=tuple(replace(site, causal=False) for site in found.sites))
    assert verify(model, case.batch(), found).checks["future"].largest == 0.0
    assert not verify(model, case.batch(), loose).checks["future"].passed


def test_missing_second_call_of_a_site_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = family("Llama")
    model = case.model()
    found = anatomy(model)
    # Both blocks under one name, like two calls of one block.
    twice = replace(found, sites=tuple(replace(site, layer=0) for site in found.sites))
    assert verify(model, case.batch(), twice).passed
    original = tap_module.tap

    def forgetful(model: Any, found: Any, receive: Any, masks: Any) -> Any:
        seen: list[Any] = []

        def once(frame: Any) -> None:
            if isinstance(frame, AttentionFrame):
                seen.append(frame)
            if len(seen) < 2:
                receive(frame)

        return original(model, found, once, masks)

    monkeypatch.setattr(verify_module, "tap", forgetful)
    with pytest.raises(RefusalError, match="skipped attention calls"):
        verify(model, case.batch(), twice)


def test_a_changed_output_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = family("BERT")
    model = case.model()
    original = run
    runs = 0

    def drifting(model: Any, batch: Any) -> Any:
        nonlocal runs
        runs += 1
        output = original(model, batch)
        return {"x": output[0] + (1e-7 if runs == 2 else 0.0)}

    monkeypatch.setattr(verify_module, "run", drifting)
    result = verify(model, case.batch(), anatomy(model))
    assert 0 < result.checks["output"].largest < 1e-6
    assert not result.passed


def test_a_wrong_residual_identity_is_caught() -> None:
    case = family("GPT-2")
    model = case.model()
    found = anatomy(model)
    stack = found.stacks[0]
    block = stack.blocks[1]
    doubled = replace(block.writes, identities=tuple(replace(i, multiplier=2.0) for i in block.writes.identities))
    bent = replace(stack, blocks=(stack.blocks[0], replace(block, writes=doubled)))
    result = verify(model, case.batch(), replace(found, stacks=(bent,)))
    assert not result.checks["residual identity"].passed
    assert result.checks["mixed"].passed


def test_the_fused_path_of_torch_is_mentioned() -> None:
    case = family("torch nn.TransformerEncoder")
    result = verify(case.model(), case.batch("right"), anatomy(case.model(), case.example()))
    assert result.passed
    (note,) = result.notes
    assert "fused encoder path" in note
    assert float(note.rsplit(" ", 1)[1]) < 1e-5


def test_verify_probes_the_model() -> None:
    case = family("Bloom")
    result = verify(case.model(), case.batch())
    assert result.passed
    assert result.routes == ("softmax",)
