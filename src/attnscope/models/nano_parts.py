"""The parts of a nano block: attention with an exchangeable core, norms, two-layer perceptrons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.core.variant import Variant

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""`attend(query, key, value, mask, scale) -> mixed`: all `[batch, head, token, dim]`, mask True where a key is seen."""


def scaled_dot_product(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch head key dim"],
    value: Float[Tensor, "batch head key dim"],
    mask: Bool[Tensor, "#batch 1 #query key"] | None,
    scale: float,
) -> Float[Tensor, "batch head query dim"]:
    """softmax(scale q k^T) v, in torch's fused kernel."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def exchanged(variant: Variant, **own: Any) -> Attend:
    """A variant of kind pattern or logits as a core for `Nano(config, attention=...)`, with what it is called with."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        mixed: Tensor = variant(query, key, value, visible=mask, causal=False, scale=scale, **own)
        return mixed

    return attend


class Attention(nn.Module):
    """Multi-head self-attention. `attend` mixes values; everything else is four linear maps."""

    def __init__(self, width: int, heads: int, dim: int, biases: bool, attend: Attend = scaled_dot_product) -> None:
        super().__init__()
        self.heads, self.dim, self.attend = heads, dim, attend
        self.query = nn.Linear(width, heads * dim, bias=biases)
        self.key = nn.Linear(width, heads * dim, bias=biases)
        self.value = nn.Linear(width, heads * dim, bias=biases)
        self.output = nn.Linear(heads * dim, width, bias=biases)

    @property
    def scale(self) -> float:
        return float(self.dim**-0.5)

    def forward(
        self, stream: Float[Tensor, "batch token width"], mask: Bool[Tensor, "#batch 1 #query key"] | None = None
    ) -> Float[Tensor, "batch token width"]:
        query, key, value = (
            projection(stream).unflatten(-1, (self.heads, self.dim)).transpose(1, 2)  # [batch, head, token, dim]
            for projection in (self.query, self.key, self.value)
        )
        mixed = self.attend(query, key, value, mask, self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def norm_of(width: int, place: str, kind: str) -> nn.Module:
    if place == "none":
        return nn.Identity()
    return nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width, eps=1e-6)


def perceptron(inputs: int, hidden: int | None, outputs: int, activation: str, biases: bool) -> nn.Module:
    """Linear, activation, linear; without hidden units one linear map."""
    if hidden is None:
        return nn.Linear(inputs, outputs, bias=biases)
    gate = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}[activation]
    return nn.Sequential(nn.Linear(inputs, hidden, bias=biases), gate(), nn.Linear(hidden, outputs, bias=biases))
