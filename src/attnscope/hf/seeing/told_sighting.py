"""A sighting put right by what the attention function itself told of its call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.seeing.masks import MaskReader
from attnscope.hf.seeing.primitives import FusedCall
from attnscope.hf.seeing.sighting import Sighting
from attnscope.hf.seeing.telling import Told, Weights
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import for_every_head
from attnscope.trace.frame import PassedOn


def as_told(seen: Sighting, told: Told, calls: Sequence[FusedCall], masks: MaskReader) -> Sighting:
    """Values, A V, pattern, or queries and keys, where they are others than the call's arguments say."""
    if told.unseen is not None:
        raise RefusalError(told.unseen)
    value = seen.value if told.value is None else told.value.detach()
    attended = None if told.attended is None else told.attended.detach()
    if told.attended is not None:
        seen = replace(seen, passed_on=PassedOn(told.attended, lambda output: output))
    if told.gate is not None:
        seen = replace(seen, gate=told.gate.detach())
    scores = seen.scores
    if told.logits_of is not None:
        scores = _with_queries_of(calls, scores, told.logits_of)
    if told.weights is None:
        return replace(seen, scores=scores, value=value, attended=attended)
    return replace(
        seen,
        scores=_with_pattern(scores, told.weights, masks),
        value=value,
        attended=attended,
        holds=told.weights.holds,
        sums_to_one=told.weights.sums_to_one,
    )


def _with_pattern(scores: Scores, weights: Weights, masks: MaskReader) -> Scores:
    rule = masks.read(weights.visible, scores.query.shape[2])
    allowed = rule.allowed
    if allowed is None:  # said outright: a weight of 0 does not mean that a key is hidden
        allowed = torch.ones(1, 1, 1, scores.key.shape[2], dtype=torch.bool, device=scores.query.device)
    with torch.no_grad():
        pattern = weights.write_out().detach()
    return Scores(
        query=scores.query,
        key=scores.key,
        scale=weights.scale,
        causal=weights.causal or rule.causal,
        window=rule.window,
        allowed=allowed,
        pattern=pattern,
    )


def _with_queries_of(calls: Sequence[FusedCall], scores: Scores, heads: tuple[int, ...]) -> Scores:
    """Logits made from other queries and keys than the call's: those that the fused kernel was given."""
    if not calls:
        raise RefusalError("The exchanged attention did not use the fused kernel, so its logits were not seen.")
    count = scores.query.shape[1]
    if len(heads) == count:
        return replace(scores, query=calls[-1].query.detach(), key=calls[-1].key.detach(), lse=calls[-1].lse)
    mine = torch.tensor(heads, device=scores.query.device)

    def joined(own: Tensor, other: Tensor) -> Tensor:
        return for_every_head(own, count).index_copy(1, mine, other.detach().to(own.dtype))

    query, key = joined(scores.query, calls[-1].query), joined(scores.key, calls[-1].key)
    return replace(scores, query=query, key=key, lse=None)
