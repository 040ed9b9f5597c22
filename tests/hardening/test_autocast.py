"""Inside torch.autocast nothing is measured: one sentence names it, and outside everything is as before."""

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
    "patterns": lambda model: observed_pattern(model, TEXT, layer=0, head=0, k=2, tokenizer=byte_tokenizer()),
}


@pytest.mark.parametrize("way", WAYS)
def test_autocast_is_named(way: str) -> None:
    sentence = (
        "torch.autocast is on for cpu and would round what is measured to bfloat16: leave the torch.autocast context, "
        "and give the model in the precision that you mean."
    )
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RefusalError) as refused:
        WAYS[way](tiny_llama())
    assert str(refused.value) == sentence


def test_an_autocast_that_is_turned_off_inside_is_none() -> None:
    model, words = tiny_llama(), byte_tokenizer()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        inside = attnscope.scan(model, [TEXT], tokenizer=words, samples=1, measures="entropy")
    outside = attnscope.scan(model, [TEXT], tokenizer=words, samples=1, measures="entropy")
    assert inside.cells == outside.cells
