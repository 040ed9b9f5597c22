"""`explain` on models with several stacks, with one state for the whole text, and with windows."""

from typing import Any

import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.commands.explain.running import start_of
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.tapping.capture import capture
from tests.hf.tiny import tiny
from tools.every_family import first_sequence
from tools.explained import explained


def one(model_type: str) -> tuple[Any, dict[str, Tensor]]:
    model, batch = tiny(model_type)
    return model, first_sequence(batch)


def test_two_towers_are_both_explained() -> None:
    model, batch = one("clip")
    found = attnscope.explain(model, batch, methods="relevance")
    assert [given.name for given in found.inputs] == ["image", "text"]
    picture, text = found.method("relevance").scores
    assert sum(picture) > 0
    assert sum(text) > 0
    assert len(text) == batch["input_ids"].shape[1]


def test_blocks_that_join_two_streams_are_followed() -> None:
    """LXMERT has separate stacks that join text and picture. Their calls belong to the two streams."""
    model, batch = one("lxmert")
    found = attnscope.explain(model, batch, methods="relevance")
    assert all(sum(row) > 0 for row in found.method("relevance").scores)
    assert not any("not followed" in note for note in found.notes)
    assert not explained(model, batch).endswith(", in part")


def test_one_state_for_the_whole_text_is_explained_by_its_norm() -> None:
    model, batch = one("dpr")
    found = attnscope.explain(model, batch, methods="relevance,path_contribution")
    with torch.no_grad():
        state = model(**batch).pooler_output[0]
    # One norm of 32 entries with equal bits.
    assert found.value == pytest.approx(float(state.norm()), rel=32 * torch.finfo(torch.float32).eps)
    assert found.names == ("relevance", "path_contribution")
    assert any("one state for the whole input" in note for note in found.notes)


def test_an_answer_that_depends_on_the_picture_alone_is_explained_by_it() -> None:
    model, batch = one("flava")  # its first output belongs to the picture
    found = attnscope.explain(model, batch, methods="gradient_input")
    by_name = dict(zip((given.name for given in found.inputs), found.method("gradient_input").scores, strict=True))
    assert any(by_name["image"])
    assert not any(by_name["text"])


def test_attention_within_windows_is_refused() -> None:
    model, batch = one("swin")
    found = anatomy(model, batch)
    pixels = {"pixel_values": batch["pixel_values"].clone().requires_grad_()}
    captured = capture(model, pixels, found, (), lambda output: output.flatten(1).norm(dim=-1))
    with pytest.raises(attnscope.RefusalError, match="SwinModel attends within 16 separate windows"):
        start_of(captured, found)
