"""Deep random stacks of attention, and remedies against their collapse, each of which changes one thing.

The plain stack is the one in arXiv:2103.03404: no skip, LayerNorm after every block (post), no MLP. Skips are added in
two ways: with post-norm, x <- LN(x + f(x)), which is one change; and with pre-norm, x <- x + f(LN(x)), which is two
changes, so that pre-norm without skips is also shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.papers.models.nano import Attend, Block, Config, Nano, exchanged, scaled_dot_product
from attnscope.variants.attn_scale import attn_scale
from attnscope.variants.contra_norm import contra_norm
from attnscope.variants.local import local
from attnscope.variants.minus_uniform import minus_uniform
from attnscope.variants.shaped import shaped
from attnscope.variants.sigma_reparam import sigma_reparam

SKIPS = (
    "skip",
    "skip, branch / sqrt(L)",
    "norm before",
    "norm before, skip",
    "norm before, skip, branch / sqrt(L)",
)


def bare(width: int, heads: int, layers: int, gain: float) -> Config:
    """Return the configuration of attention alone, with initial weights of standard deviation `gain` / sqrt(width)."""
    plain = Config(width, heads, layers, inputs=width, out=1, norm="post", positions="none", skip=0, biases=False)
    return replace(plain, initial=gain * width**-0.5)


def remedied(plain: Config, seed: int, *, window: int, scale: float, contrast: float) -> Mapping[str, Nano]:
    """Return a stack for every change except skips, by name. All have the same weights."""
    contrasted, normed = _made(plain, seed), _made(plain, seed)
    for block in contrasted.blocks:
        assert isinstance(block, Block)
        block.attention = Contrasted(block.attention, contrast)  # type: ignore[assignment]
    with_unit_spectral_norm(normed)
    ones = torch.ones(plain.heads)
    exact = _made(plain, seed, exchanged(minus_uniform))
    for module in exact.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.0
    return {
        "attention alone": _made(plain, seed),
        "causal mask": _made(replace(plain, causal=True), seed),
        "local mask": _made(plain, seed, exchanged(local, window=window)),
        "A - J": _made(plain, seed, exchanged(minus_uniform)),
        "A - J, no epsilon": exact,
        "shaped I + A - J": _made(plain, seed, exchanged(shaped, alpha=ones, beta=ones, gamma=ones)),
        "AttnScale": _made(plain, seed, exchanged(attn_scale, weight=scale * ones)),
        "ContraNorm": contrasted,
        "sigma-reparam": normed,
        "no LayerNorm": _made(replace(plain, norm="none"), seed),
        "causal, no LayerNorm": _made(replace(plain, norm="none", causal=True), seed),
    }


def with_skips(plain: Config, seed: int) -> Mapping[str, Nano]:
    """Return the stacks with skips, post-norm or pre-norm, scaled by 1/sqrt(L) or not, and pre-norm without skips."""
    scaled = plain.layers**-0.5
    changes = (
        replace(plain, skip=1),
        replace(plain, skip=1, branch=scaled),
        replace(plain, norm="pre"),
        replace(plain, norm="pre", skip=1),
        replace(plain, norm="pre", skip=1, branch=scaled),
    )
    return {name: _made(config, seed) for name, config in zip(SKIPS, changes, strict=True)}


def deep(plain: Config, seed: int) -> Mapping[str, Nano]:
    """Return the stacks to run at greater depth: those that may only slow the collapse."""
    return {"causal mask": _made(replace(plain, causal=True), seed), **with_skips(plain, seed)}


class Contrasted(nn.Module):
    """Attention followed by ContraNorm."""

    def __init__(self, attention: nn.Module, strength: float) -> None:
        super().__init__()
        self.attention, self.strength = attention, strength

    def forward(self, stream: Float[Tensor, "batch token width"], mask: Tensor | None = None) -> Tensor:
        write: Tensor = self.attention(stream, mask)
        apart: Tensor = contra_norm(write, strength=torch.full((1,), self.strength, dtype=write.dtype), visible=mask)
        return apart


@torch.no_grad()
def with_unit_spectral_norm(model: nn.Module) -> None:
    """Apply sigma-reparametrisation with its initial gain, which gives every linear map spectral norm 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            changed = sigma_reparam({"weight": module.weight}, weight_gain=torch.ones((), dtype=module.weight.dtype))
            module.weight.copy_(changed["weight"])


def _made(config: Config, seed: int, attention: Attend = scaled_dot_product) -> Nano:
    return Nano(config, seed, attention).double()
