"""`explain` on models of several stacks, of one state for a whole text, and of windows: what is followed, what is said
not to be, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.explaining.running import start_of
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.tapping.capture import capture
from tests.hf.tiny import tiny
from tools.every_family import first_sequence
from tools.explained import explained


def one(model_type: str) -> tuple[Any, dict[str, Tensor]]:
    model, batch = tiny(model_type)
    return model, first_sequence(batch)


def test_of_two_towers_the_one_that_reads_the_text_is_explained() -> None:
    model, batch = one("clip")
    found = attnscope.explain(model, batch, methods="relevance")
    assert [given.name for given in found.inputs] == ["text"]
    assert sum(found.scores("relevance")) > 0
    assert len(found.scores("relevance")) == batch["input_ids"].shape[1]


def test_layers_that_are_not_followed_are_named() -> None:
    """LXMERT: the text's own layers are followed, and those that join it with the picture are stacks of their own."""
    model, batch = one("lxmert")
    found = attnscope.explain(model, batch, methods="relevance")
    assert sum(found.scores("relevance")) > 0
    (note,) = [note for note in found.notes if "is not followed" in note]
    assert "lang_self_att" in note
    assert explained(model, batch).endswith(", in part")
    alone = attnscope.explain(*one("bert"), methods="relevance")
    assert not any("is not followed" in note for note in alone.notes)


def test_one_state_for_the_whole_text_is_explained_by_its_norm() -> None:
    model, batch = one("dpr")
    found = attnscope.explain(model, batch, methods="relevance,path_contribution")
    with torch.no_grad():
        state = model(**batch).pooler_output[0]
    # One norm of 32 entries, of the same bits.
    assert found.value == pytest.approx(float(state.norm()), rel=32 * torch.finfo(torch.float32).eps)
    assert found.names == ("relevance", "path_contribution")
    assert any("one state for the whole input" in note for note in found.notes)


def test_an_answer_that_does_not_depend_on_the_text_is_said_to_be_so() -> None:
    model, batch = one("flava")  # whose first output is of the picture
    with pytest.raises(attnscope.RefusalError, match="its first output does not depend on this input"):
        attnscope.explain(model, batch, methods="relevance")


def test_windows_are_not_taken_for_sequences() -> None:
    model, batch = one("swin")
    found = anatomy(model, batch)
    pixels = {"pixel_values": batch["pixel_values"].clone().requires_grad_()}
    captured = capture(model, pixels, found, (), lambda output: output.flatten(1).norm(dim=-1))
    with pytest.raises(attnscope.RefusalError, match="SwinModel attends within 16 windows of a sequence apart"):
        start_of(captured, found)
