"""Scores: what is needed to know an attention pattern exactly, without the pattern.

An attention call is determined by its queries and keys, a scale, and what is done to the logits:

    s_ij = softcap(scale * q_i . k_j) + bias_ij,  -inf where (i, j) is not allowed,
    A_ij = exp(s_ij - lse_i),                      lse_i = log(sum_j exp(s_ij) [+ exp(sink)]).

Everything in this room that speaks of attention takes a `Scores` and never needs more than O(n) rows of it at
a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.band import Band


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
    sinks: Float[Tensor, " heads"] | None = None  # one learned extra logit a head: rows then sum to < 1
    lse: Float[Tensor, "batch heads query"] | None = None  # where the model's own kernel returned it (sink included)
    pattern: Float[Tensor, "batch heads query key"] | None = None  # where the model itself made its maps

    @property
    def plain(self) -> bool:
        """Whether logits are a scaled dot product that a fused kernel can compute on its own."""
        return self.softcap is None and self.sinks is None and self.bias is None and self.pattern is None

    def with_equal_logits(self) -> Scores:
        """The pattern that prefers nothing: the same rule of who sees whom, and uniform rows under it."""
        bias = None if self.bias is None else torch.zeros_like(self.bias).masked_fill(self.bias.isneginf(), -torch.inf)
        pattern = None if self.pattern is None else (self.pattern > 0).to(self.pattern.dtype)
        if pattern is not None:
            pattern = pattern / pattern.sum(-1, keepdim=True).clamp_min(1)
        return replace(self, query=torch.zeros_like(self.query), bias=bias, sinks=None, lse=None, pattern=pattern)

    @property
    def sharing(self) -> int:
        """How many query heads read one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def band(self) -> Band:
        """What `causal` and `window` permit, as distances."""
        reach = None if self.window is None else self.window - 1
        return Band(behind=reach, ahead=0 if self.causal else reach)
