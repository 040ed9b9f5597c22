"""Cores of one nano layer that are cheaper than full attention: a memory of fixed size, or a window.

    for block, core in zip(model.blocks, ("full", "delta")):
        block.attention.attend = CORES[core]

All have the same weights around them, so that hybrids of any kinds have as many numbers as full attention. Keys of a
memory are made at most 1 long; queries are divided by nothing but the layer's own scale. Memories are read in the order
of the tokens: they are for causal models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.linear_memory import bounded, delta_memory, sum_memory
from attnscope.models.nano import Block, Nano
from attnscope.models.nano_parts import Attend, scaled_dot_product

Heads = Float[Tensor, "batch head token dim"]
Mask = Bool[Tensor, "#batch 1 #query key"] | None


def linear(query: Heads, key: Heads, value: Heads, mask: Mask, scale: float) -> Heads:
    return sum_memory(scale * query, bounded(key), value, mask)


def delta(query: Heads, key: Heads, value: Heads, mask: Mask, scale: float) -> Heads:
    return delta_memory(scale * query, bounded(key), value, mask)


def window(tokens: int) -> Attend:
    """Full attention to the last so many tokens, the own one included."""

    def core(query: Heads, key: Heads, value: Heads, mask: Mask, scale: float) -> Heads:
        places = torch.arange(query.shape[2], device=query.device)
        near = (places[:, None] - places < tokens)[None, None]
        return scaled_dot_product(query, key, value, near if mask is None else mask & near, scale)

    return core


CORES: Mapping[str, Attend] = {"full": scaled_dot_product, "linear": linear, "delta": delta}


def hybrid(model: Nano, kinds: Sequence[str | Attend]) -> Nano:
    """Give every layer its kind, in place: a name of `CORES`, or a core itself."""
    if len(kinds) != len(model.blocks):
        raise RefusalError(f"The model has {len(model.blocks)} layers and {len(kinds)} kinds were given: give as many.")
    if not model.config.causal:
        raise RefusalError("Memories are written from left to right: make the model with causal=True.")
    for block, kind in zip(model.blocks, kinds, strict=True):
        assert isinstance(block, Block)
        if isinstance(kind, str) and kind not in CORES:
            raise RefusalError(f"No layer is called {kind}: choose one of {', '.join(CORES)}.")
        core: Callable[..., Tensor] = CORES[kind] if isinstance(kind, str) else kind
        block.attention.attend = core
    return model
