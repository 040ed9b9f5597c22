"""What stops rank collapse? Remedies on deep random stacks without skips, all measured in the same way.

The stack is that of arXiv:2103.03404: attention alone, no skip, LayerNorm behind every layer, random weights, random
tokens, float64. One thing is changed at a time: the mask, the pattern, the norm, the weights; or the skip comes back,
with or without the scaling 1/sqrt(L). Where the norm stands decides what a skip is worth, so skips are shown with
LayerNorm behind (the one thing changed) and before, and LayerNorm before without skips; these also at four times the
depth, which tells stopping from slowing. The number is the relative residual ||X - 1 mean^T|| / ||X|| in the paper's
norm after the last layer: 0 when all tokens are one, about 1 when they are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment, median
from attnscope.matrix.residual import relative_residual
from attnscope.papers.models.nano import Nano
from attnscope.papers.models.plant import network_of
from attnscope.papers.trials.remedied_stacks import SKIPS, bare, deep, remedied, with_skips


@dataclass(frozen=True)
class Params:
    layers: int = 12
    deep: int = 48
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


FLOOR = 1e-13  # rounding in float64 leaves some 1e-15 where all tokens are one: a hundred times that is a number
DEEP = " (deep)"


def stacks(params: Params, gain: float, seed: int) -> Mapping[str, Nano]:
    """Every stack of the table, by the name it has there."""
    plain = bare(params.width, params.heads, params.layers, gain)
    deeper = deep(replace(plain, layers=params.deep), seed)
    changed = remedied(plain, seed, window=params.window, scale=params.attn_scale, contrast=params.contra_norm)
    return {**changed, **with_skips(plain, seed), **{f"{name}{DEEP}": stack for name, stack in deeper.items()}}


PANELS = {
    "masks": ("attention alone", "causal mask", "local mask"),
    "changed attention": ("A - J", "A - J, no epsilon", "shaped I + A - J", "AttnScale", "ContraNorm"),
    "norms and weights": ("sigma-reparam", "no LayerNorm", "causal, no LayerNorm", "norm before"),
    "skips": tuple(name for name in SKIPS if "skip" in name),
}
DEEP_PANELS = {
    "norm behind": tuple(f"{name}{DEEP}" for name in ("causal mask", "skip", "skip, branch / sqrt(L)")),
    "norm before": tuple(f"{name}{DEEP}" for name in SKIPS if "norm before" in name),
}


@torch.no_grad()
def residuals(params: Params, gain: float, seed: int, session: Session) -> list[dict[str, Any]]:
    """The relative residual entering every layer and leaving the last, of every stack, on the same tokens."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randn(params.sequences, params.tokens, params.width, generator=rng, dtype=torch.float64)
    found = []
    known = stacks(params, gain, seed)
    for done, (name, stack) in enumerate(known.items()):
        session.advance(name, done, len(known))
        stack.embedding = nn.Identity()
        streams = network_of(stack, {"vectors": tokens}).streams
        kept = [float(relative_residual(stream).mean()) for stream in streams]
        found.append({"stack": name, "gain": gain, "seed": seed, "residual": kept})
    return found


def key_of(stack: str, gain: float = 1.0) -> str:
    """`residual_a_minus_j`, `residual_a_minus_j_at_gain_0.25`: what the claims call the number of a stack."""
    words = stack.lower().replace(" - ", " minus ").replace(" + ", " plus ").replace(" / sqrt(l)", " scaled")
    words = words.replace("(", "").replace(")", "")
    key = "residual_" + words.replace(",", "").replace("-", "_").replace(" ", "_")
    return key if gain == 1 else f"{key}_at_gain_{gain:g}"


def figure(found: Sequence[Mapping[str, Any]], gain: float, panels: Mapping[str, Sequence[str]], name: str) -> Figure:
    rows = []
    for panel, stacked in panels.items():
        for stack in stacked:
            seeds = [one["residual"] for one in found if one["stack"] == stack and one["gain"] == gain]
            for depth in range(len(seeds[0])):
                values = [residual[depth] for residual in seeds]
                rows.append(Point.over(values, depth, stack.removesuffix(DEEP), panel))
    caption = "Relative residual against depth; median and range over seeds. float64: below 1e-15 is rounding."
    title = f"What {'stops' if name == 'remedies' else 'still stops'} it, weights of {gain:g} / sqrt(width)"
    return Figure(f"{name}-{gain:g}", title, caption, "depth", "relative residual", tuple(rows), log=True)


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
        "A causal mask slows the collapse.",
        "at least a thousand times what attention alone leaves after twelve layers",
        holds=(Bound("causal_mask_over_attention_alone", ">=", 1e3),),
        fails=(Bound("causal_mask_over_attention_alone", "<=", 1.0),),
    ),
    Claim(
        "causal_mask_does_not_stop",
        "2405.18781",
        "A causal mask does not stop the collapse.",
        "at most 1e-3 after 48 layers",
        holds=(Bound(key_of(f"causal mask{DEEP}"), "<=", 1e-3),),
        fails=(Bound(key_of(f"causal mask{DEEP}"), ">=", 0.1),),
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
        "LayerNorm plays no role in the collapse.",
        "with and without it the residual agrees within a factor 10, causal mask or none, at the last depth where both "
        "are above rounding (1e-13)",
        holds=(Bound("layer_norm_decades_above_rounding", "<=", 1.0),),
        fails=(Bound("layer_norm_decades_above_rounding", ">=", 2.0),),
    ),
    Claim(
        "layer_norm_changes_the_speed",
        "2405.18781",
        "LayerNorm changes how fast tokens collapse.",
        "with and without it the residual at depth 3 is a factor 10 or more apart, causal mask or none",
        holds=(Bound("layer_norm_decades_at_depth_3", ">=", 1.0),),
        fails=(Bound("layer_norm_decades_at_depth_3", "<=", 0.1),),
    ),
    Claim(
        "skips_slow",
        "2103.03404",
        "Skips slow the collapse where LayerNorm stays behind every layer: one thing changed.",
        "at least a thousand times what attention alone leaves after twelve layers",
        holds=(Bound("skip_over_attention_alone", ">=", 1e3),),
        fails=(Bound("skip_over_attention_alone", "<=", 1.0),),
    ),
    Claim(
        "norm_before_alone_does_not_stop",
        "2103.03404",
        "LayerNorm before every layer instead of behind does not stop the collapse by itself (our control).",
        "at most 1e-3 after twelve layers",
        holds=(Bound(key_of("norm before"), "<=", 1e-3),),
        fails=(Bound(key_of("norm before"), ">=", 0.1),),
    ),
    *(
        stopping(
            f"skips_stop_with_norm_{place}",
            f"{stack}{DEEP}",
            "2103.03404",
            f"Skips stop the collapse where LayerNorm stands {place} every layer (random weights are our question).",
            "at least .1 after 48 layers",
        )
        for place, stack in (("behind", "skip"), ("before", "norm before, skip"))
    ),
    *(
        stopping(
            f"scaled_skips_stop_with_norm_{place}",
            f"{stack}{DEEP}",
            "2206.03126",
            f"With branches scaled by 1/sqrt(L) the residual stays near its start, LayerNorm {place} every layer.",
            "at least .5 after 48 layers",
            least=0.5,
        )
        for place, stack in (
            ("behind", "skip, branch / sqrt(L)"),
            ("before", "norm before, skip, branch / sqrt(L)"),
        )
    ),
)


@experiment(
    title="What stops rank collapse",
    paper="2405.18781",
    summary="Masks, changed patterns, norms, weights and skips, side by side on deep random stacks of attention.",
    advice=(
        "Where LayerNorm stands matters as much as the skip itself: at random weights of usual size, skips past a "
        "norm that stays behind every layer only slow the collapse, and 48 layers are one token again, while skips "
        "past a norm in front still leave a tenth of the differences there. For deep stacks scale branches by "
        "1/sqrt(layers), which keeps tokens apart with either norm, or else use pre-norm. Removing the mean of "
        "attention or adding the identity works without skips; a fixed amplifying factor does so only while weights"
        " are large."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "15 s", "paper": "4 min"},
    seeds={"quick": 3, "paper": 5},
    claims=CLAIMS,
)
def stopping_collapse(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    measured: dict[str, list[float]] = {}
    records: list[Mapping[str, Any]] = []
    for gain in params.gains:
        for seed in seeds:
            found = session.part(f"stacks-{gain:g}-{seed}", partial(residuals, params, gain, seed, session))
            records += found
            residual = {one["stack"]: one["residual"] for one in found}
            for stack, values in residual.items():
                measured.setdefault(key_of(stack, gain), []).append(values[-1])
            if gain == 1:
                for name, value in comparisons(residual).items():
                    measured.setdefault(name, []).append(value)
    figures = tuple(
        figure(records, gain, panels, name)
        for gain in params.gains
        for name, panels in (("remedies", PANELS), ("deep", DEEP_PANELS))
    )
    return Result(measured, tuple(records), figures, remarks(measured, params))


def comparisons(residual: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """What claims ask of two stacks of one seed, side by side. Where attention alone is down at rounding, what the
    others have over it is a lower bound."""
    alone = max(residual["attention alone"][-1], 1e-300)
    over = {
        f"{key}_over_attention_alone": residual[stack][-1] / alone
        for key, stack in (("local_mask", "local mask"), ("causal_mask", "causal mask"), ("skip", "skip"))
    }
    pairs = [
        (residual[one], residual[f"{other}no LayerNorm"])
        for one, other in (("attention alone", ""), ("causal mask", "causal, "))
    ]
    above = [[_decades(*both) for both in zip(*pair, strict=True) if min(both) > FLOOR] for pair in pairs]
    return over | {
        "layer_norm_decades_at_depth_3": max(_decades(one[3], other[3]) for one, other in pairs),
        "layer_norm_decades_above_rounding": max(apart[-1] for apart in above),
    }


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
    return abs(math.log10(max(one, 1e-300) / max(other, 1e-300)))
