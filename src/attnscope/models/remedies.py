"""Attention that has been proposed against rank collapse, each as a core for `Nano(config, attention=...)`.

J = 11^T/n is the pattern that averages all tokens, A = softmax(scale Q K^T). A row of A is J plus what tells tokens
apart; every remedy makes the second part weigh more. Those that speak of J average over all tokens: under a mask (a
causal model, padding) that average is not theirs to take, and they refuse. `local` is a mask itself and joins another.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.models.nano_parts import Attend
from attnscope.pathways.pattern import attention_pattern

Mixed = Float[Tensor, "batch head query dim"]


def minus_uniform(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Mixed:
    """(A - J) V: the part of A that its largest singular value hides (arXiv:2410.07799)."""
    return _pattern(query, key, mask, scale) @ value - value.mean(dim=-2, keepdim=True)


def shaped(alpha: float = 1.0, beta: float = 1.0, gamma: float = 1.0) -> Attend:
    """(alpha I + beta A - gamma J) V, near the identity where logits are small (arXiv:2306.17759, arXiv:2311.01906)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Mixed:
        mixed = _pattern(query, key, mask, scale) @ value
        return alpha * value + beta * mixed - gamma * value.mean(dim=-2, keepdim=True)

    return attend


def attn_scale(weight: float) -> Attend:
    """(J + (1 + w)(A - J)) V: the high frequencies of A made louder (AttnScale, arXiv:2203.05962)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Mixed:
        mean = value.mean(dim=-2, keepdim=True)
        return mean + (1 + weight) * (_pattern(query, key, mask, scale) @ value - mean)

    return attend


def local(window: int) -> Attend:
    """A token sees those at most `window` places away, of those that it sees at all (arXiv:2405.18781)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Mixed:
        place = torch.arange(query.shape[-2], device=query.device)
        seen = (place[:, None] - place).abs() <= window
        if mask is not None:
            seen = seen & mask
            # Padding far from every real token would see nothing, and softmax of nothing is NaN: it sees itself.
            seen = seen | (~seen.any(-1, keepdim=True) & (place[:, None] == place))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale)

    return attend


class Contrasted(nn.Module):
    """Attention, then ContraNorm: y - s softmax(u u^T) y, u the unit tokens; it pushes tokens apart (2303.06562)."""

    def __init__(self, attention: nn.Module, strength: float) -> None:
        super().__init__()
        self.attention, self.strength = attention, strength

    def forward(self, stream: Float[Tensor, "batch token width"], mask: Tensor | None = None) -> Tensor:
        _refuse_mask(mask)
        mixed: Tensor = self.attention(stream, None)
        unit = F.normalize(mixed, dim=-1)
        return mixed - self.strength * ((unit @ unit.mT).softmax(-1) @ mixed)


@torch.no_grad()
def with_unit_spectral_norm(model: nn.Module) -> None:
    """Sigma-reparametrisation at its start: every linear map divided by its largest singular value (2303.06296)."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.div_(torch.linalg.matrix_norm(module.weight, ord=2))


def _pattern(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Float[Tensor, "batch head query key"]:
    _refuse_mask(mask)
    return attention_pattern(query, key, scale=scale)


def _refuse_mask(mask: Tensor | None) -> None:
    if mask is not None:
        raise RefusalError(
            "This remedy compares every token with the mean of all, and a mask hides some of them: use it in a model "
            "that is not causal, on sequences without padding."
        )
