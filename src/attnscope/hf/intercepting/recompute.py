"""Write the attention pattern out in float64, straight from the definition: every other route is compared with this.

It makes the n x n map on purpose and shares no code with the statistics, so that an error in one cannot hide in both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.scores import Scores


def dense_pattern(scores: Scores) -> Float[Tensor, "batch heads query key"]:
    """Return the softmax of the logits; rows that may attend to nothing are zero."""
    if scores.pattern is not None:
        return scores.pattern.double()
    query, key = scores.query.double(), scores.key.double()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = scores.scale * query @ key.transpose(-1, -2)
    if scores.softcap is not None:
        logits = scores.softcap * torch.tanh(logits / scores.softcap)
    if scores.bias is not None:
        logits = logits + scores.bias.double()
    logits = logits.masked_fill(~visible(scores), float("-inf"))
    if scores.sinks is not None:
        sinks = scores.sinks.double()[None, :, None, None].expand(*logits.shape[:3], 1)
        return torch.cat([logits, sinks], dim=-1).softmax(-1)[..., :-1].nan_to_num(0.0)
    return logits.softmax(-1).nan_to_num(0.0)


def visible(scores: Scores) -> Bool[Tensor, "#batch #heads query key"]:
    """Return which keys a query may see; in a map without a rule, those with a weight above zero."""
    if scores.pattern is not None and scores.allowed is None:
        return scores.pattern > 0
    rows = torch.arange(scores.query.shape[2], device=scores.query.device)[:, None]
    distance = rows - torch.arange(scores.key.shape[2], device=scores.query.device)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if scores.causal:
        seen &= distance >= 0
    if scores.window is not None:
        seen &= distance.abs() < scores.window
    seen = seen[None, None]
    if scores.allowed is not None:
        seen = seen & scores.allowed
    return seen if scores.bias is None else seen & ~scores.bias.isneginf()


def dense_mixed(
    scores: Scores, value: Float[Tensor, "batch kv_heads key value_dim"]
) -> Float[Tensor, "batch query heads value_dim"]:
    """Return A V. Only one sequence's maps exist at a time."""
    rows = []
    for index in range(scores.query.shape[0]):
        pattern = dense_pattern(one_sequence(scores, index))
        mine = value[index : index + 1].double()
        repeated = mine.repeat_interleave(scores.query.shape[1] // mine.shape[1], dim=1)
        rows.append((pattern @ repeated).transpose(1, 2))
    return torch.cat(rows)


def one_sequence(scores: Scores, index: int) -> Scores:
    """Return the scores of one sequence of the batch."""

    def pick(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[index : index + 1] if tensor.shape[0] > 1 else tensor

    row = slice(index, index + 1)
    some: dict[str, Any] = {name: pick(getattr(scores, name)) for name in ("allowed", "bias", "lse", "pattern")}
    return replace(scores, query=scores.query[row], key=scores.key[row], **some)
