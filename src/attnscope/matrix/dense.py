"""The slow, obvious computation of attention patterns and their statistics, the reference for the fast routes.

It builds the whole n x n pattern in float64 and computes each statistic from its definition. Use it for short
sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from attnscope.matrix.scores import KeyMask, Maps, QueryMask, RowValues, Scores, Statistics
from attnscope.matrix.similarity import sample_rows
from attnscope.matrix.spans import sink_keys


def dense_pattern(scores: Scores) -> Maps:
    """Return A in float64. Rows that see no key are 0."""
    if scores.pattern is not None:
        return scores.pattern.double()
    s = dense_logits(scores)
    if scores.sinks is not None:
        sink = scores.sinks.double()[None, :, None, None].expand(*s.shape[:-1], 1)
        s = torch.cat([s, sink], -1)
    pattern = torch.softmax(s, -1)[..., : scores.key.shape[2]]
    return pattern.nan_to_num(0.0)


def dense_logits(scores: Scores) -> Maps:
    """Return s in float64, -inf for hidden keys."""
    query, key = scores.query.double(), scores.key.double().repeat_interleave(scores.sharing, 1)
    s = scores.scale * query @ key.mT
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + scores.bias.double()
    i = torch.arange(s.shape[2], device=s.device)[:, None]
    j = torch.arange(s.shape[3], device=s.device)
    permitted = scores.band.permits(i, j)
    if scores.allowed is not None:
        permitted = permitted & scores.allowed
    return s.masked_fill(~permitted, float("-inf"))


def dense_statistics(scores: Scores, want: Collection[str], *, query_mask: QueryMask, key_mask: KeyMask) -> Statistics:
    """Return every statistic straight from its definition."""
    A = dense_pattern(scores) * query_mask[:, None, :, None]
    i = torch.arange(A.shape[2], device=A.device)[:, None]
    j = torch.arange(A.shape[3], device=A.device)
    first = key_mask.to(torch.int8).argmax(-1)[:, None, None, None]
    definitions: dict[str, Callable[[], Tensor]] = {
        "row_entropy": lambda: torch.special.entr(A).sum(-1),
        "row_sum_squares": lambda: (A * A).sum(-1),
        "row_mass": lambda: A.sum(-1),
        "row_peak": lambda: A.amax(-1),
        "row_top_logit": lambda: _top_logit(scores, query_mask),
        "first_key_mass": lambda: (A * (j == first)).sum(-1),
        "self_mass": lambda: (A * (j == i)).sum(-1),
        "previous_mass": lambda: (A * (j == i - 1)).sum(-1),
        "mean_distance": lambda: (A * (i - j).abs()).sum(-1),
        "received": lambda: A.sum(-2),
        "head_overlap": lambda: _overlap(A, query_mask),
        "mass_by_distance": lambda: _mass_by_distance(A, query_mask, key_mask),
    }
    return {name: definitions[name]() for name in want if name != "row_top_logit" or scores.pattern is None}


def _top_logit(scores: Scores, query_mask: QueryMask) -> RowValues:
    """Return max_j s_ij; 0 for rows that are padding or see nothing."""
    top = dense_logits(scores).amax(-1)
    return top.masked_fill(top.isneginf() | ~query_mask[:, None], 0.0)


def _overlap(A: Maps, query_mask: QueryMask) -> Tensor:
    """Return the mean cosine of every pair of heads over the sampled rows."""
    rows, real = sample_rows(query_mask)
    batch, heads = A.shape[:2]
    out = A.new_zeros(batch, heads, heads)
    for b in range(batch):
        sample = [A[b, h, rows[b][real[b]]] for h in range(heads)]
        for g in range(heads):
            for h in range(heads):
                cosine = torch.cosine_similarity(sample[g], sample[h], dim=-1, eps=1e-30)
                out[b, g, h] = cosine.sum() / max(1, len(cosine))
    return out


def _mass_by_distance(A: Maps, query_mask: QueryMask, key_mask: KeyMask) -> Tensor:
    """Return the mass at each distance |i - j|, over the real rows and without sink keys."""
    kept = A.masked_fill(sink_keys(A.sum(-2), query_mask, key_mask)[:, :, None], 0.0)
    behind = [kept.diagonal(-d, -2, -1).sum(-1) for d in range(max(A.shape[2:]))]
    ahead = [kept.diagonal(d, -2, -1).sum(-1) for d in range(1, max(A.shape[2:]))]
    return torch.stack([behind[0], *(a + b for a, b in zip(behind[1:], ahead, strict=True))], -1)
