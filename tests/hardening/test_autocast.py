"""Measuring inside torch.autocast is refused, and has no effect on later measurements outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.tapping.observed import observed_pattern
from tests.specimens import byte_tokenizer, tiny_llama

TEXT = "the dog and the fox"
WAYS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda model: attnscope.scan(model, [TEXT], tokenizer=byte_tokenizer(), measures="entropy"),
    "collapse": lambda model: attnscope.collapse(model, [TEXT], tokenizer=byte_tokenizer(), dtype="float32"),
    "collapse of a shape": lambda _: attnscope.collapse("bert-base", random_init=True),
    "paths": lambda model: attnscope.paths(model, TEXT, tokenizer=byte_tokenizer(), dtype="float32"),
    "patterns": lambda model: observed_pattern(model, TEXT, block=0, head=0, k=2, tokenizer=byte_tokenizer()),
}


@pytest.mark.parametrize("way", WAYS)
def test_autocast_is_refused_by_name(way: str) -> None:
    sentence = (
        "torch.autocast is on for cpu and would round the measured numbers to bfloat16: leave the torch.autocast "
        "context, and cast the model itself if you want that precision."
    )
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RefusalError) as refused:
        WAYS[way](tiny_llama())
    assert str(refused.value) == sentence


def test_disabled_autocast_inside_is_allowed() -> None:
    model, words = tiny_llama(), byte_tokenizer()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        inside = attnscope.scan(model, [TEXT], tokenizer=words, samples=1, measures="entropy")
    outside = attnscope.scan(model, [TEXT], tokenizer=words, samples=1, measures="entropy")
    assert inside.cells == outside.cells
