"""Find the argument of a forward pass that has one row per token, by comparing shapes with the stream of a real run.

Batches given in memory may name their tokens in any way (`idx`, `src`, `x`) and may have tokens first. So the first
batch runs once, and the argument whose first two axes are those of a stack, in either order, is the one with tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.data.batches import Batch, Batches
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy, marks_padding
from attnscope.hf.intercepting.restoring import evaluating, without_gradients
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.tapping.padding import real_tokens
from attnscope.hf.tapping.tap import tap


@dataclass(frozen=True)
class TokenAxis:
    """The argument with one row per token: `[batch, token, ...]`, or `[token, batch, ...]` with `sequence_first`."""

    argument: str
    sequence_first: bool

    def count(self, batch: Batch) -> tuple[int, int] | None:
        """Return the number of sequences, and of tokens that are not padding; None if the batch has no such argument.

        Batches whose tokens are known by name are not counted again.
        """
        tokens = batch.inputs.get(self.argument)
        if batch.named or tokens is None or tokens.ndim < 2:
            return None
        first, second = tokens.shape[:2]
        shape = (second, first) if self.sequence_first else (first, second)
        for name, mask in batch.inputs.items():
            if marks_padding(name, mask) and mask.shape == shape:
                return shape[0], int(real_tokens(name, mask).sum())
        return shape[0], first * second


def token_axis(model: nn.Module, found: Anatomy, batch: Batch, options: Mapping[str, Any]) -> TokenAxis | None:
    """Return the argument with one row per token; None if names tell it, or if there is none (pictures, sound)."""
    if batch.named:
        return None
    shapes: dict[str, tuple[int, int]] = {}

    def receive(frame: Any) -> None:
        if isinstance(frame, AttentionFrame):
            rows, tokens = frame.query_mask.shape
            shapes.setdefault(frame.stack, (rows, tokens))

    try:
        with evaluating(model), without_gradients(), tap(model, found, receive):
            model(**batch.inputs, **options)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return None  # the scan will run halves of the batch
    for rows, tokens in shapes.values():
        for name, tensor in batch.inputs.items():
            if _holds_tokens(name, tensor):
                if tensor.shape[:2] == (rows, tokens):
                    return TokenAxis(name, sequence_first=False)
                if tensor.shape[:2] == (tokens, rows):
                    return TokenAxis(name, sequence_first=True)
    return None


def _holds_tokens(name: str, tensor: Tensor) -> bool:
    """Return whether an argument may hold tokens: numbers of tokens, or one vector a token."""
    return tensor.ndim == (3 if tensor.is_floating_point() else 2) and not marks_padding(name, tensor)


def with_tokens_counted(batches: Batches, axis: TokenAxis | None) -> Batches:
    """Return batches with the right numbers of sequences and tokens."""
    return batches if axis is None else batches.recounted(axis.count)
