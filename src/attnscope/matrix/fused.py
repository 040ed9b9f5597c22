"""Attention statistics from fused attention calls alone: exact, in O(n d) memory.

With s the logits, A = softmax(s) and lse the log-sum-exp of each row, which the fused kernel returns,

    entropy of row i         = lse_i - scale q_i . (A K)_i                    one call with value = K
    sum of squares of row i  = exp(lse(2 s)_i - 2 lse_i)                      one call with the scale doubled
    mass received by key j   = exp(log sum_i exp(s_ij - lse_i))               one call with exchanged roles:
                               logits [k_j, -1] . [scale q_i, lse_i]; flipped on both axes it is causal again
    mass on a chosen key     = exp(s_ij - lse_i)                              one dot product per row
    mean distance            = i - (A p)_i for causal rows, p_j = j           one more column beside K

Without a causal mask |i - j| is not a linear functional of a row with weights shared by all rows, but its causal half
is: with B and lse' the pattern and log-sum-exp of the same logits under a causal mask, A_ij = B_ij exp(lse'_i - lse_i)
for j <= i, and |i - j| = 2 (i - j)^+ - (i - j) gives

    mean distance            = 2 exp(lse'_i - lse_i) (i - (B p)_i) - (i - (A p)_i)    one more causal call.

Row maxima are not linear and are left to the blocked route.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from attnscope.core.errors import RefusalError
from attnscope.matrix.attend import additive_mask
from attnscope.matrix.scores import (
    POINTWISE_STATISTICS,
    KeyMask,
    QueryMask,
    RowValues,
    Scores,
    Statistics,
    pointwise_mass,
)
from attnscope.matrix.visibility import Band

FUSED_STATISTICS = (*("row_entropy", "row_sum_squares", "row_mass", "mean_distance", "received"), *POINTWISE_STATISTICS)
STRIP_ELEMENTS = 2**22


def fused_statistics(
    scores: Scores, want: Collection[str], *, query_mask: QueryMask, key_mask: KeyMask, dtype: torch.dtype
) -> Statistics:
    """Return the wanted statistics of FUSED_STATISTICS, for a plain scaled dot product."""
    if not scores.plain or scores.query.device.type != "cpu":
        raise RefusalError(
            "The fused route takes plain scaled dot products on a CPU only: use route 'blocked' for soft-capping, "
            "sinks, a bias, given patterns and other devices."
        )
    query, key = scores.query.detach().to(dtype), scores.key.detach().to(dtype)
    scores = replace(scores, query=query, key=key, lse=None)
    row = torch.arange(query.shape[2], dtype=dtype, device=query.device)
    position = torch.arange(key.shape[2], dtype=dtype, device=query.device)
    probes = position[:, None] if "mean_distance" in want else None
    mixed, spotted, lse = _mix_keys(scores, probes)
    live = query_mask[:, None] & (lse > float("-inf"))
    lse = lse.masked_fill(~live, 0.0)
    values: Statistics = {}
    if "row_entropy" in want:
        values["row_entropy"] = lse - scores.scale * (query * mixed).sum(-1)
    if "row_mass" in want:
        values["row_mass"] = torch.ones_like(lse)
    if "row_sum_squares" in want:
        doubled = attend(replace(scores, scale=2 * scores.scale), key)[1]
        values["row_sum_squares"] = torch.exp(doubled - 2 * lse)
    if "mean_distance" in want:
        assert spotted is not None
        values["mean_distance"] = row - spotted[..., 0]
        if scores.band.ahead != 0:
            _, halfway, half_lse = _mix_keys(replace(scores, causal=True), position[:, None])
            assert halfway is not None
            share = torch.exp(half_lse - lse)
            values["mean_distance"] = 2 * share * (row - halfway[..., 0]) - values["mean_distance"]
    for name in POINTWISE_STATISTICS:
        if name in want:
            values[name] = pointwise_mass(scores, name, key_mask=key_mask, dtype=dtype, lse=lse)
    values = {name: torch.where(live, value, 0.0) for name, value in values.items()}
    if "received" in want:
        values["received"] = _received(scores, lse, live)
    return values


def _mix_keys(scores: Scores, probes: Float[Tensor, "key probes"] | None) -> tuple[Tensor, Tensor | None, RowValues]:
    """Return A K and A probes from one call: probe columns beside K, q and k padded with zeros."""
    if probes is None:
        mixed, lse = attend(scores, scores.key)
        return mixed, None, lse
    dim, extra = scores.key.shape[-1], probes.shape[-1]
    padded = replace(scores, query=F.pad(scores.query, (0, extra)), key=F.pad(scores.key, (0, extra)))
    beside = torch.cat([scores.key, probes.expand(*scores.key.shape[:-1], extra)], -1)
    mixed, lse = attend(padded, beside)
    return mixed[..., :dim], mixed[..., dim:], lse


def _received(
    scores: Scores, lse: RowValues, live: Bool[Tensor, " batch #heads query"]
) -> Float[Tensor, "batch heads key"]:
    """Return column sums over live rows: the log-sum-exp of the attention of keys to queries."""
    key = scores.key.repeat_interleave(scores.sharing, 1)
    swapped_query = F.pad(key, (0, 1), value=-1.0)
    swapped_key = torch.cat([scores.scale * scores.query, lse[..., None]], -1)
    allowed = live[:, :, None, :]
    seen = None
    if scores.allowed is not None:
        if scores.allowed.shape[2] == 1:  # the mask is the same for every query: all see a key or none does
            seen = scores.allowed[:, :, 0]
        else:
            allowed = allowed & scores.allowed.mT
    swapped = Scores(swapped_query, swapped_key, 1.0, allowed=allowed)
    received = attend(swapped, swapped_key, band=scores.band.mirrored)[1].exp()
    return received if seen is None else torch.where(seen, received, 0.0)


def attend(
    scores: Scores, value: Float[Tensor, "batch kv_heads key value_dim"], *, band: Band | None = None
) -> tuple[Float[Tensor, "batch heads query value_dim"], RowValues]:
    """Return A V and log-sum-exp for any band and mask; the latter is -inf for rows that see nothing.

    Open and causal bands take one call, if the mask is the same for all queries. A band that only looks ahead becomes
    causal when both axes are flipped. All else is cut into strips of rows with explicit masks, in bounded memory.
    """
    band = scores.band if band is None else band
    rows, keys = scores.query.shape[2], scores.key.shape[2]
    allowed = scores.allowed
    if allowed is None or allowed.shape[2] == 1:
        if band in (Band(), Band(ahead=0)):
            out, lse = _call(scores, value, allowed, causal=band.ahead == 0)
            return out, lse.masked_fill(~_sees_any(allowed, band, rows, keys, lse.device), float("-inf"))
        if band == Band(behind=0) and rows == keys:
            allowed = None if allowed is None else allowed.flip(3)
            flipped = replace(scores, query=scores.query.flip(2), key=scores.key.flip(2), allowed=allowed)
            out, lse = attend(flipped, value.flip(2), band=Band(ahead=0))
            return out.flip(2), lse.flip(2)
    return _attend_in_strips(scores, value, band)


def _sees_any(
    allowed: Tensor | None, band: Band, rows: int, keys: int, device: torch.device
) -> Bool[Tensor, "#batch #heads query"]:
    """Return which rows of an open or causal band see at least one key."""
    if allowed is None:
        return torch.full((1, 1, rows), keys > 0, device=device)
    if band.ahead is None:
        return allowed.any(-1).expand(-1, -1, rows)
    until = torch.arange(rows, device=device).clamp_max(keys - 1)
    return (allowed.cumsum(-1) > 0)[:, :, 0, :].index_select(-1, until)


def _attend_in_strips(scores: Scores, value: Tensor, band: Band) -> tuple[Tensor, Tensor]:
    batch, heads, rows, _ = scores.query.shape
    keys = scores.key.shape[2]
    out = scores.query.new_zeros(batch, heads, rows, value.shape[-1])
    lse = scores.query.new_full((batch, heads, rows), float("-inf"))
    masks = 1 if scores.allowed is None else scores.allowed.shape[0] * scores.allowed.shape[1]
    size = max(16, STRIP_ELEMENTS // max(1, masks * keys))
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        begin, end = band.visible(start, stop - 1, keys)
        if begin == end:
            continue
        i = torch.arange(start, stop, device=lse.device)[:, None]
        seen = band.permits(i, torch.arange(begin, end, device=lse.device))[None, None]
        if scores.allowed is not None:
            some = scores.allowed if scores.allowed.shape[2] == 1 else scores.allowed[:, :, start:stop]
            seen = seen & some[..., begin:end]
        part = Scores(scores.query[:, :, start:stop], scores.key[:, :, begin:end], scores.scale)
        mixed, some_lse = _call(part, value[:, :, begin:end], seen, causal=False)
        out[:, :, start:stop] = mixed
        lse[:, :, start:stop] = some_lse.masked_fill(~seen.any(-1), float("-inf"))
    return out, lse


def _call(scores: Scores, value: Tensor, allowed: Tensor | None, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Make one fused call. The CPU kernel takes a causal flag and a mask together; torch's public function does not."""
    mask = None if allowed is None else additive_mask(allowed, scores.query.dtype)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(scores.query, scores.key, value, 0.0, causal, attn_mask=mask, scale=scores.scale)
    return out, lse
