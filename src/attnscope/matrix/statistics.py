"""Exact statistics of attention patterns without the patterns: one entry point, three routes.

    blocked   one pass over cache-sized tiles; every kind of logit, every device; the fast route (blocked.py)
    fused     fused attention calls and identities; plain scaled dot products on a CPU (fused.py)
    dense     the whole pattern in float64; slow, obvious, for tests (dense.py)

All give the same numbers. On one CPU thread, with the log-sum-exp known as in a scan, the whole default set costs 1.2
to 1.7 bare fused calls by the blocked route at 128 to 16384 keys, and 3.3 to 8 by the fused route (see
bench/statistics.py). Masses on chosen keys need neither route: `auto` computes them by dot products, and all else by
the blocked route.

Rows whose query is padding are 0 and add nothing to `received`; padded keys are 0 in `received`, `self_mass`,
`previous_mass`. A row that sees no key is 0, never NaN. With learned sinks rows sum to less than 1; their entropy is
-sum_j A_ij ln A_ij over the real keys, without the sink's own term.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.core.errors import RefusalError, nearest
from attnscope.matrix.blocked import ROW_STATISTICS, blocked_statistics
from attnscope.matrix.dense import dense_statistics
from attnscope.matrix.fused import FUSED_STATISTICS, fused_statistics
from attnscope.matrix.scores import (
    POINTWISE_STATISTICS,
    KeyMask,
    QueryMask,
    RowValues,
    Scores,
    Statistics,
    pointwise_mass,
)
from attnscope.matrix.similarity import head_overlap

Route = Literal["auto", "fused", "blocked", "dense"]
STATISTICS = (*ROW_STATISTICS, "received", "head_overlap", "mass_by_distance")
# A float32 logit of size B is wrong by about B 2^-24, and so is the logarithm of every mass. Masses must be right to
# 1e-6 and entropies, which add many such errors, to 1e-5; above this bound on |q| |k| scale float64 is used.
FLOAT32_LOGIT_BOUND = 8.0
# A float32 log-sum-exp near ln n is wrong by up to about 1e-6 at a few thousand keys, an entropy by ln n times it.
FLOAT32_KEYS = 2048


def attention_statistics(
    scores: Scores,
    want: Collection[str],
    *,
    query_mask: QueryMask,
    key_mask: KeyMask,
    route: Route = "auto",
    accumulate: torch.dtype | None = None,
) -> Statistics:
    """Return the wanted statistics by name.

    `[batch head query]`: row_entropy (nats), row_sum_squares, row_mass, row_peak, row_top_logit (max_j s_ij; missing
    if only the pattern is known), first_key_mass (on the first real key), self_mass (key j = i),
    previous_mass (key j = i - 1), mean_distance (sum_j A_ij |i - j|); `[batch head key]`: received (sum over real
    rows); `[batch head head]`: head_overlap (cosine of patterns on sampled rows); `[batch head distance]`:
    mass_by_distance (sum over real rows of the mass at each |i - j|, without sink keys: spans.py defines them).

    `accumulate` is the precision of the arithmetic. None chooses float32 where it is good to 1e-6 on masses and 1e-5 on
    entropies, float64 elsewhere; torch.float32 is faster, trusts the log-sum-exp of the scores, and errs by about 1e-7
    times the largest logit (1e-4 if that log-sum-exp came from half-precision inputs).
    """
    for name in want:
        if name not in STATISTICS:
            raise RefusalError(f"There is no attention statistic '{name}'.{nearest(name, STATISTICS)}")
    with torch.no_grad():
        scores = _without_padding(scores, query_mask, key_mask)
        dtype = torch.float64 if route == "dense" else accumulate or working_precision(scores)
        lse = _trusted_lse(scores, accumulate, dtype)
        masks = {"query_mask": query_mask, "key_mask": key_mask}
        values = _by_route(scores, list(dict.fromkeys(want)), masks, route=route, dtype=dtype, lse=lse)
        return {name: _cleaned(name, value, key_mask) for name, value in values.items()}


def _without_padding(scores: Scores, query_mask: QueryMask, key_mask: KeyMask) -> Scores:
    """Set padding to zero: it may be NaN, which no mask removes."""
    if scores.pattern is not None or (bool(query_mask.all()) and bool(key_mask.all())):
        return scores
    return replace(
        scores,
        query=scores.query.masked_fill(~query_mask[:, None, :, None], 0.0),
        key=scores.key.masked_fill(~key_mask[:, None, :, None], 0.0),
        lse=None if scores.lse is None else scores.lse.masked_fill(~query_mask[:, None], 0.0),
    )


def working_precision(scores: Scores) -> torch.dtype:
    """Return float32 if it is sure to reach the stated accuracy, else float64."""
    if torch.float64 in (scores.query.dtype, scores.key.dtype):
        return torch.float64
    if scores.pattern is not None:
        return torch.float32
    small = scores.key.shape[2] <= FLOAT32_KEYS and logit_bound(scores) <= FLOAT32_LOGIT_BOUND
    return torch.float32 if small else torch.float64


def logit_bound(scores: Scores) -> float:
    """Return the Cauchy-Schwarz bound on |s_ij| from the longest query and the longest key, in O(n d)."""
    if scores.query.numel() == 0 or scores.key.numel() == 0:
        return 0.0
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).amax() for x in (scores.query, scores.key)]
    bound = float(longest[0] * longest[1]) * abs(scores.scale)
    if scores.bias is not None:
        finite = scores.bias.float()
        bound += float(torch.where(finite > -1e4, finite.abs(), 0.0).amax())
    return bound


def _trusted_lse(scores: Scores, accumulate: torch.dtype | None, dtype: torch.dtype) -> RowValues | None:
    """Return the given log-sum-exp if it is as precise as the arithmetic, which it is not for half-precision inputs."""
    if scores.lse is None or scores.lse.dtype.itemsize < dtype.itemsize:
        return None
    if accumulate is None and scores.query.dtype.itemsize < 4:
        return None
    return scores.lse.detach().to(dtype)


def _by_route(
    scores: Scores,
    want: list[str],
    masks: dict[str, Tensor],
    *,
    route: Route,
    dtype: torch.dtype,
    lse: RowValues | None,
) -> dict[str, Tensor]:
    if route == "dense":
        return dense_statistics(scores, want, **masks)
    key_mask, query_mask = masks["key_mask"], masks["query_mask"]
    single = set(want) <= {*POINTWISE_STATISTICS, "head_overlap"}
    if route == "auto" and single and scores.plain and lse is not None:
        names = [name for name in want if name != "head_overlap"]
        masses = {name: pointwise_mass(scores, name, key_mask=key_mask, dtype=dtype, lse=lse) for name in names}
        values = {name: mass * query_mask[:, None] for name, mass in masses.items()}
    elif route == "fused":
        missing = [name for name in want if name not in (*FUSED_STATISTICS, "head_overlap")]
        if missing:
            raise RefusalError(f"The fused route does not give {', '.join(missing)}: use route 'blocked'.")
        values = fused_statistics(scores, want, **masks, dtype=dtype)
    else:
        return blocked_statistics(scores, want, **masks, dtype=dtype, lse=lse)
    if "head_overlap" in want:
        values["head_overlap"] = head_overlap(scores, query_mask=query_mask, dtype=dtype, lse=lse)
    return values


def _cleaned(name: str, value: Tensor, key_mask: KeyMask) -> Tensor:
    """Set padded keys to 0, and values that rounding left below 0 (or at -0) to 0."""
    if name == "received":
        return torch.where(key_mask[:, None], value, 0.0)
    if name == "first_key_mass":
        return torch.where(key_mask.any(-1)[:, None, None], value, 0.0)
    if name in ("self_mass", "previous_mass"):
        rows, back = value.shape[-1], int(name == "previous_mass")
        real = F.pad(key_mask, (back, max(0, rows - back - key_mask.shape[1])))[:, :rows]
        return torch.where(real[:, None], value, 0.0)
    if name == "row_top_logit":
        return value
    return value.clamp_min(0.0) + 0.0
