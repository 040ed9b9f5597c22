"""Which tokens a stack reads during one forward pass, as the numbers that the model was given.

An encoder-decoder has two lists: its encoder reads `input_ids`, the stack that looks across reads `decoder_input_ids`,
and where those were left out the model makes them itself and nothing is said of them. Of several other stacks the one
beside the table of words reads. Where a model puts tokens of its own before them, lengths differ, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.tapping.media import reading_words


class Tokens:
    """Numbers of tokens by stack, as a forward pass was given them."""

    def __init__(self, model: nn.Module, found: Anatomy) -> None:
        names = [stack.name for stack in found.stacks]
        crossing = {site.stack for site in found.sites if site.site == "cross"}
        self._reads: dict[str, str] = {}
        if crossing:
            self._reads = {name: "decoder_input_ids" if name in crossing else "input_ids" for name in names}
        elif names:
            reading = set(names) if len(names) == 1 else reading_words(model, found)
            self._reads = dict.fromkeys(reading, "input_ids")
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._given = {
            name: arguments[name]
            for name in set(self._reads.values())
            if isinstance(arguments.get(name), Tensor) and not torch.is_floating_point(arguments[name])
        }

    def of(self, stack: str, real: Bool[Tensor, "batch token"]) -> Int[Tensor, "batch token"] | None:
        ids = self._given.get(self._reads.get(stack, ""))
        return ids.to(real.device) if ids is not None and ids.shape == real.shape else None
