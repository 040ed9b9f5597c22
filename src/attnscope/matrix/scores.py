"""Scores: everything that determines an attention pattern, without the pattern.

An attention call is determined by its queries and keys, a scale, and changes to the logits:

    s_ij = softcap(scale * q_i . k_j) + bias_ij,  -inf where (i, j) is not allowed,
    A_ij = exp(s_ij - lse_i),                      lse_i = log(sum_j exp(s_ij) [+ exp(sink)]).

Functions of this package take a `Scores` and never hold an n x n map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from attnscope.matrix.visibility import Band

RowValues = Float[Tensor, "batch heads query"]
QueryMask = Bool[Tensor, "batch query"]
KeyMask = Bool[Tensor, "batch key"]
Maps = Float[Tensor, "batch heads query key"]
Statistics = dict[str, Float[Tensor, " ..."]]
POINTWISE_STATISTICS = ("first_key_mass", "self_mass", "previous_mass")


@dataclass(frozen=True)
class Scores:
    """Queries, keys and the rule that turns them into logits; `heads` queries may share `kv_heads` keys."""

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    scale: float
    causal: bool = False  # query i sees keys <= i (upper-left aligned, as in torch's fused kernels)
    window: int | None = None  # with causal: sees keys i-window+1..i; without: |i-j| < window
    allowed: Bool[Tensor, "#batch #heads #query key"] | None = None  # True = may attend
    bias: Float[Tensor, "#batch #heads #query key"] | None = None  # added to the logits; -inf forbids
    softcap: float | None = None  # c tanh(s/c), before bias
    sinks: Float[Tensor, " heads"] | None = None  # one learned extra logit per head: rows then sum to < 1
    lse: RowValues | None = None  # given if the model's own kernel returned it (sink included)
    pattern: Maps | None = None  # given if the model itself computed its maps

    @property
    def plain(self) -> bool:
        """Whether logits are a scaled dot product that a fused kernel can compute on its own."""
        return self.softcap is None and self.sinks is None and self.bias is None and self.pattern is None

    def with_equal_logits(self) -> Scores:
        """Return scores with the same masks and equal logits, so that rows are uniform."""
        bias = None if self.bias is None else torch.zeros_like(self.bias).masked_fill(self.bias.isneginf(), -torch.inf)
        pattern = None if self.pattern is None else (self.pattern > 0).to(self.pattern.dtype)
        if pattern is not None:
            pattern = pattern / pattern.sum(-1, keepdim=True).clamp_min(1)
        return replace(self, query=torch.zeros_like(self.query), bias=bias, sinks=None, lse=None, pattern=pattern)

    @property
    def sharing(self) -> int:
        """The number of query heads that share one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def band(self) -> Band:
        """The distances that `causal` and `window` permit."""
        reach = None if self.window is None else self.window - 1
        return Band(behind=reach, ahead=0 if self.causal else reach)


def pointwise_mass(scores: Scores, name: str, *, key_mask: KeyMask, dtype: torch.dtype, lse: RowValues) -> RowValues:
    """Return `first_key_mass`, `self_mass` or `previous_mass` of a plain scaled dot product in O(n d).

    A_ij = exp(s_ij - lse_i) needs only one entry of the row.
    """
    row = torch.arange(scores.query.shape[2], device=key_mask.device)
    if name == "first_key_mass":
        target = key_mask.to(torch.int8).argmax(-1)[:, None].expand(-1, len(row))
    else:
        target = (row - (0 if name == "self_mass" else 1)).expand(len(key_mask), -1)
    return mass_at(scores, target, dtype, lse)


def mass_at(scores: Scores, target: Int[Tensor, "batch query"], dtype: torch.dtype, lse: RowValues | None) -> RowValues:
    """Return A at key target[b, i] of row i; 0 if there is no such key or it may not be seen.

    `lse`, sinks included, is not needed if the pattern is given.
    """
    batch, heads, rows, dim = scores.query.shape
    keys, groups = scores.key.shape[2], scores.key.shape[1]
    exists = (target >= 0) & (target < keys)
    safe = target.clamp(0, keys - 1)
    if scores.pattern is not None:
        index = safe[:, None, :, None].expand(-1, heads, -1, 1)
        return torch.where(exists[:, None], scores.pattern.detach().gather(-1, index)[..., 0].to(dtype), 0.0)
    assert lse is not None
    chosen = scores.key.detach().gather(2, safe[:, None, :, None].expand(-1, groups, -1, dim)).to(dtype)
    query = scores.query.detach().to(dtype).reshape(batch, groups, scores.sharing, rows, dim)
    s = scores.scale * torch.einsum("bgsid,bgid->bgsi", query, chosen).reshape(batch, heads, rows)
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + _at(scores.bias.detach(), safe).to(dtype)
    seen = (exists & scores.band.permits(torch.arange(rows, device=target.device), target))[:, None]
    if scores.allowed is not None:
        seen = seen & _at(scores.allowed, safe)
    return torch.where(seen, torch.exp(s - lse), 0.0)


def _at(
    rule: Shaped[Tensor, "#batch #heads #query key"], place: Int[Tensor, "batch query"]
) -> Shaped[Tensor, "batch some_heads query"]:
    """Return the mask or bias at one key of every row."""
    batch, rows = place.shape
    return rule.expand(batch, -1, rows, -1).gather(-1, place[:, None, :, None].expand(-1, rule.shape[1], -1, 1))[..., 0]
