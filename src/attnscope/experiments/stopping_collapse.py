"""What stops rank collapse? Remedies on deep random stacks without skips, all measured in the same way.

The stack is that of arXiv:2103.03404: attention alone, no skip, LayerNorm behind every layer, random weights, random
tokens, float64. One thing is changed at a time: the mask, the pattern, the norm, the weights; or the skip comes back,
with or without the scaling 1/sqrt(L). The number is the relative residual ||X - 1 mean^T|| / ||X|| in the paper's norm
after the last layer: 0 when all tokens are one, about 1 when they are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.experiment import Bound, Claim, Desk, Figure, Point, Result, experiment, median
from attnscope.matrix.residual import relative_residual
from attnscope.models.nano import Block, Config, Nano
from attnscope.models.nano_network import network_of
from attnscope.models.nano_parts import exchanged
from attnscope.variants.attn_scale import attn_scale
from attnscope.variants.contra_norm import contra_norm
from attnscope.variants.local import local
from attnscope.variants.minus_uniform import minus_uniform
from attnscope.variants.shaped import shaped
from attnscope.variants.sigma_reparam import sigma_reparam


@dataclass(frozen=True)
class Params:
    layers: int = 12
    width: int = 64
    heads: int = 2
    tokens: int = 64
    sequences: int = 2
    window: int = 4
    attn_scale: float = 20.0
    contra_norm: float = 0.9
    gains: tuple[float, ...] = (1.0, 0.25)  # size of fresh weights, over 1/sqrt(width); BERT-base begins at .55


OTHER = "as here from small weights"
FULL = replace(Params(), width=256, heads=4, tokens=128, sequences=4)


class Contrasted(nn.Module):
    """Attention, then ContraNorm."""

    def __init__(self, attention: nn.Module, strength: float) -> None:
        super().__init__()
        self.attention, self.strength = attention, strength

    def forward(self, stream: Float[Tensor, "batch token width"], mask: Tensor | None = None) -> Tensor:
        write: Tensor = self.attention(stream, mask)
        apart: Tensor = contra_norm(write, strength=torch.full((1,), self.strength, dtype=write.dtype), visible=mask)
        return apart


@torch.no_grad()
def with_unit_spectral_norm(model: nn.Module) -> None:
    """Sigma-reparametrisation at its start: every linear map has spectral norm 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            changed = sigma_reparam({"weight": module.weight}, weight_gain=torch.ones((), dtype=module.weight.dtype))
            module.weight.copy_(changed["weight"])


def stacks(params: Params, gain: float, seed: int) -> Mapping[str, Nano]:
    """Every stack of the table, by the name it has there. All share their weights."""
    plain = Config(
        inputs=params.width,
        out=1,
        width=params.width,
        heads=params.heads,
        layers=params.layers,
        norm="post",
        positions="none",
        skip=0,
        biases=False,
        initial=gain * params.width**-0.5,
    )
    make: Callable[..., Nano] = lambda config=plain, **more: Nano(config, seed, **more).double()  # noqa: E731
    contrasted, normed = make(), make()
    for block in contrasted.blocks:
        assert isinstance(block, Block)
        block.attention = Contrasted(block.attention, params.contra_norm)  # type: ignore[assignment]
    with_unit_spectral_norm(normed)
    ones = torch.ones(params.heads)
    without_mean = exchanged(minus_uniform)
    exact = make(attention=without_mean)
    for module in exact.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.0
    small = params.layers**-0.5
    return {
        "attention alone": make(),
        "causal mask": make(replace(plain, causal=True)),
        "local mask": make(attention=exchanged(local, window=params.window)),
        "A - J": make(attention=without_mean),
        "A - J, no epsilon": exact,
        "shaped I + A - J": make(attention=exchanged(shaped, alpha=ones, beta=ones, gamma=ones)),
        "AttnScale": make(attention=exchanged(attn_scale, weight=params.attn_scale * ones)),
        "ContraNorm": contrasted,
        "sigma-reparam": normed,
        "no LayerNorm": make(replace(plain, norm="none")),
        "causal, no LayerNorm": make(replace(plain, norm="none", causal=True)),
        "skip": make(replace(plain, norm="pre", skip=1)),
        "skip, branch / sqrt(L)": make(replace(plain, norm="pre", skip=1, branch=small)),
    }


PANELS = {
    "masks": ("attention alone", "causal mask", "local mask"),
    "changed attention": ("A - J", "A - J, no epsilon", "shaped I + A - J", "AttnScale", "ContraNorm"),
    "norms, weights, skips": (
        *("sigma-reparam", "no LayerNorm", "causal, no LayerNorm", "skip", "skip, branch / sqrt(L)"),
    ),
}


@torch.no_grad()
def residuals(params: Params, gain: float, seed: int, desk: Desk) -> list[dict[str, Any]]:
    """The relative residual entering every layer and leaving the last, of every stack, on the same tokens."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randn(params.sequences, params.tokens, params.width, generator=rng, dtype=torch.float64)
    found = []
    known = stacks(params, gain, seed)
    for done, (name, stack) in enumerate(known.items()):
        desk.advance(name, done, len(known))
        stack.embedding = nn.Identity()
        streams = network_of(stack, {"vectors": tokens}).streams
        kept = [float(relative_residual(stream).mean()) for stream in streams]
        found.append({"stack": name, "gain": gain, "seed": seed, "residual": kept})
    return found


def key_of(stack: str, gain: float = 1.0) -> str:
    """`residual_a_minus_j`, `residual_a_minus_j_at_gain_0.25`: what the claims call the number of a stack."""
    words = stack.lower().replace(" - ", " minus ").replace(" + ", " plus ").replace(" / sqrt(l)", " scaled")
    key = "residual_" + words.replace(",", "").replace("-", "_").replace(" ", "_")
    return key if gain == 1 else f"{key}_at_gain_{gain:g}"


def figure(found: Sequence[Mapping[str, Any]], gain: float) -> Figure:
    rows = []
    for panel, names in PANELS.items():
        for name in names:
            seeds = [one["residual"] for one in found if one["stack"] == name and one["gain"] == gain]
            for depth in range(len(seeds[0])):
                values = [residual[depth] for residual in seeds]
                rows.append(Point.over(values, depth, name, panel))
    caption = "Relative residual against depth; median and range over seeds. float64: below 1e-15 is rounding."
    title = f"What stops it, weights of {gain:g} / sqrt(width)"
    return Figure(f"remedies-{gain:g}", title, caption, "depth", "relative residual", tuple(rows), log=True)


def stopping(
    name: str, stack: str, paper: str, statement: str, expected: str, *, least: float = 0.1, gain: float = 1.0
) -> Claim:
    """A claim that a remedy stops the collapse; contradicted where next to nothing is left, in a set-up that the paper
    speaks of. Small weights are our question: there a remedy is not reproduced at worst."""
    quantity = key_of(stack, gain)
    fails = (Bound(quantity, "<=", 1e-3),) if gain == 1 else ()
    return Claim(name, paper, statement, expected, (Bound(quantity, ">=", least),), fails)


CLAIMS = (
    Claim(
        "attention_alone_collapses",
        "2103.03404",
        "Attention alone collapses to rank one within twelve layers.",
        "at most 1e-12 (measured before: 2e-15)",
        holds=(Bound(key_of("attention alone"), "<=", 1e-12),),
        fails=(Bound(key_of("attention alone"), ">=", 0.1),),
    ),
    Claim(
        "causal_mask_slows",
        "2405.18781",
        "A causal mask slows the collapse but does not stop it.",
        "between 1e-4 and .1 after twelve layers (measured before: 5e-3)",
        holds=(Bound(key_of("causal mask"), ">=", 1e-4), Bound(key_of("causal mask"), "<=", 0.1)),
    ),
    Claim(
        "local_mask_slows",
        "2405.18781",
        "A local mask slows the collapse.",
        "at least a thousand times what attention alone leaves",
        holds=(Bound("local_mask_over_attention_alone", ">=", 1e3),),
        fails=(Bound("local_mask_over_attention_alone", "<=", 1.0),),
    ),
    *(
        stopping(f"{name}_stops", stack, paper, f"{words} does not collapse.", f"at least .1 ({before})")
        for name, stack, paper, words, before in (
            ("removing_uniform", "A - J", "2410.07799", "A - J", "measured before: .72"),
            ("shaped_attention", "shaped I + A - J", "2306.17759", "Shaped attention", "before: .51"),
            ("attn_scale", "AttnScale", "2203.05962", "AttnScale (w = 20)", f"before: collapsed, {OTHER}"),
            ("contra_norm", "ContraNorm", "2303.06562", "ContraNorm (s = .9)", f"before: collapsed, {OTHER}"),
        )
    ),
    *(
        stopping(
            f"{name}_stops_from_small_weights",
            stack,
            paper,
            f"{words} does not collapse from weights a quarter as large either.",
            "at least .1 (our question, not the paper's)",
            gain=0.25,
        )
        for name, stack, paper, words in (
            ("removing_uniform", "A - J, no epsilon", "2410.07799", "A - J (no epsilon in LayerNorm)"),
            ("shaped_attention", "shaped I + A - J", "2306.17759", "Shaped attention"),
            ("attn_scale", "AttnScale", "2203.05962", "AttnScale (w = 20)"),
            ("contra_norm", "ContraNorm", "2303.06562", "ContraNorm (s = .9)"),
        )
    ),
    Claim(
        "sigma_reparam_does_not_stop",
        "2303.06296",
        "Unit spectral norms, made against sharp attention, do not stop the collapse (our question, not the paper's).",
        "at most 1e-3",
        holds=(Bound(key_of("sigma-reparam"), "<=", 1e-3),),
        fails=(Bound(key_of("sigma-reparam"), ">=", 0.1),),
    ),
    Claim(
        "layer_norm_plays_no_role",
        "2103.03404",
        "LayerNorm plays no role in whether tokens collapse.",
        "with and without it the residual after the last layer agrees within a factor 10, causal mask or none",
        holds=(Bound("layer_norm_decades_at_last_depth", "<=", 1.0),),
        fails=(Bound("layer_norm_decades_at_last_depth", ">=", 2.0),),
    ),
    Claim(
        "layer_norm_changes_the_speed",
        "2405.18781",
        "LayerNorm changes how fast tokens collapse.",
        "with and without it the residual at depth 3 is a factor 10 or more apart, causal mask or none",
        holds=(Bound("layer_norm_decades_at_depth_3", ">=", 1.0),),
        fails=(Bound("layer_norm_decades_at_depth_3", "<=", 0.1),),
    ),
    stopping("skips_stop", "skip", "2103.03404", "Skips stop the collapse.", "at least .1"),
    stopping(
        "scaled_skips_stop",
        "skip, branch / sqrt(L)",
        "2206.03126",
        "With branches scaled by 1/sqrt(L), the residual stays near its start.",
        "at least .5",
        least=0.5,
    ),
)


@experiment(
    title="What stops rank collapse",
    paper="2405.18781",
    summary="Masks, changed patterns, norms, weights and skips, side by side on deep random stacks of attention.",
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "10 s", "paper": "2 min"},
    seeds={"quick": 3, "paper": 5},
    claims=CLAIMS,
)
def stopping_collapse(params: Params, seeds: tuple[int, ...], desk: Desk) -> Result:
    measured: dict[str, list[float]] = {}
    records: list[Mapping[str, Any]] = []
    for gain in params.gains:
        for seed in seeds:
            found = desk.part(f"stacks-{gain:g}-{seed}", partial(residuals, params, gain, seed, desk))
            records += found
            residual = {one["stack"]: one["residual"] for one in found}
            for stack, values in residual.items():
                measured.setdefault(key_of(stack, gain), []).append(values[-1])
            if gain == 1:
                ratio = residual["local mask"][-1] / max(residual["attention alone"][-1], 1e-300)
                measured.setdefault("local_mask_over_attention_alone", []).append(ratio)
                pairs = (("attention alone", "no LayerNorm"), ("causal mask", "causal, no LayerNorm"))
                for place, depth in (("depth_3", 3), ("last_depth", -1)):
                    apart = max(abs(_decades(residual[one][depth], residual[other][depth])) for one, other in pairs)
                    measured.setdefault(f"layer_norm_decades_at_{place}", []).append(apart)
    return Result(
        measured, tuple(records), tuple(figure(records, gain) for gain in params.gains), remarks(measured, params)
    )


def remarks(measured: Mapping[str, Sequence[float]], params: Params) -> tuple[str, ...]:
    """How small weights matter, in words that the numbers fill."""
    return tuple(
        f"Weights of {gain:g} / sqrt(width) leave "
        + ", ".join(
            f"{median(measured[key_of(stack, gain)]):.1e} with {stack}" for stack in PANELS["changed attention"]
        )
        + ". Nearer to J, a fixed factor (AttnScale, ContraNorm) has more to make up for than the identity of shaped "
        "attention, and what A - J leaves can fall below the epsilon inside LayerNorm."
        for gain in params.gains
        if gain != 1
    )


def _decades(one: float, other: float) -> float:
    """Powers of ten between two residuals."""
    return float(torch.tensor([max(one, 1e-300), max(other, 1e-300)], dtype=torch.float64).log10().diff())
