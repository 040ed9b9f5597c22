"""Stacks are named by what tells their paths apart."""

from __future__ import annotations

import pytest

from attnscope.hf.anatomy.stacks import stack_names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["model.layers"], ["model"]),
        (["encoder.block", "decoder.block"], ["encoder", "decoder"]),
        (["model.encoder.layers", "model.decoder.layers"], ["encoder", "decoder"]),
        (["text_model.encoder.layers", "vision_model.encoder.layers"], ["text", "vision"]),
        (["language_model.layers", "vision_tower.encoder.layers"], ["language", "vision"]),
        (["model.text_model.layers", "model.text_tower.layers"], ["text_model", "text_tower"]),
        (["", "encoder"], ["model", "encoder"]),
        (["vision.layers", "vision.head", "text.layers"], ["layers", "head", "text"]),
    ],
)
def test_names(paths: list[str], names: list[str]) -> None:
    containers = [tuple(p for p in path.split(".") if p) for path in paths]
    assert [stack_names(containers)[c] for c in containers] == names
