"""largest_logits(model, batches): the largest logit of every head, which `qk_clip` holds down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.example import run
from attnscope.hf.loading.load import Loaded
from attnscope.hf.seeing.exclusive import looking_at
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.largest import largest_product
from attnscope.trace.frame import AttentionFrame


def largest_logits(
    model: nn.Module | Loaded, batches: Iterable[Mapping[str, Any]], *, stack: str | None = None
) -> dict[int, Tensor]:
    """For every block its heads' largest logits between a real query and a key that it sees, as the model runs."""
    module = model.model if isinstance(model, Loaded) else model
    largest: dict[int, Tensor] = {}

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame) and frame.site == "self" and frame.stack == (stack or frame.stack):
            if frame.scores.pattern is not None:
                raise RefusalError(
                    "The logits of this model are not products of queries and keys: qk_clip does not fit it."
                )
            found = largest_product(frame.scores, frame.query_mask)
            before = largest.get(frame.layer)
            largest[frame.layer] = found if before is None else torch.maximum(before, found)

    with looking_at(module), without_gradients(), evaluating(module):
        found = None
        for batch in batches:
            found = anatomy(module, batch) if found is None else found
            with tap(module, found, receive):
                run(module, batch)
    if not largest:
        raise RefusalError("No batch was given, so no logit was seen: give at least one batch.")
    return dict(sorted(largest.items()))
