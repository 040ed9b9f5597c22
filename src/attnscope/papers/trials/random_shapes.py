"""Residual against depth of random weights in published shapes, beside the published curves (2103.03404, figure 2).

What is published as ALBERT without its MLP still has the MLP's activation: the authors' surgery puts identities in the
place of its two matrices, and GELU between them stays, added to the stream in every layer. So their curves "SAN" and
"SAN+skip" of ALBERT are of attention and x -> x + gelu(x). We measure both: without the MLP, which the claims are
about, and as they cut it, which is what their curves can be set beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from attnscope.commands.collapse.record import SHAPE_OF, differences, published
from attnscope.commands.collapse.run import collapse
from attnscope.core.experiment import Figure, Number, Point, Session, median
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.shapes import shaped

Record = Mapping[str, Any]
Pick = Callable[[list[float]], float]


def residual_curves(shape: str, sequences: int, tokens: int, seed: int, session: Session) -> dict[str, Any]:
    """Random weights of a published shape, in four variants; beside it how far the published means are from ours."""
    sizes: dict[str, Any] = {"seeds": (seed,), "samples": sequences, "max_tokens": tokens, "bounds": False}
    found = collapse(SHAPE_OF[shape], random_init=True, **sizes, progress=session.advance).curves
    beside = dict(found)
    if shape == "Albert":
        kept = collapse(activation_kept, variants=tuple(AS_CUT), **sizes, progress=session.advance).curves
        beside |= {theirs: kept[ours] for ours, theirs in AS_CUT.items()}
    apart = differences(beside, published(shape))
    return {
        "shape": shape,
        "seed": seed,
        "curves": {name: list(curve.mean) for name, curve in found.items()},
        "as_cut_by_the_authors": {name: list(beside[name].mean) for name in found if beside[name] is not found[name]},
        "largest_difference": {
            name: _extreme(max, [one.apart for one in apart if one.variant == name]) for name in found
        },
    }


AS_CUT = {"san+mlp": "san", "whole": "san+skip"}  # variants with the bare activation as MLP: which published ones


def activation_kept(seed: int, **changes: Any) -> Loaded:
    """ALBERT with identities in the place of the two matrices of its MLP; `changes` are settings of its shape."""
    loaded = shaped(SHAPE_OF["Albert"], seed=seed, **changes)
    for path, _ in list(loaded.model.named_modules()):
        if path.rpartition(".")[2] in ("ffn", "ffn_output"):
            loaded.model.set_submodule(path, nn.Identity())
    return loaded


def residual_numbers(found: Sequence[Record], seeds: Sequence[int]) -> dict[str, list[float]]:
    """For every seed the worst over shapes."""
    by_seed = [some for seed in seeds if (some := [one for one in found if one["seed"] == seed])]

    def at(pick: Pick, variant: str, depth: int) -> list[float]:
        return [_extreme(pick, [one["curves"][variant][depth] for one in some]) for some in by_seed]

    return {
        "attention_alone_residual_at_depth_3": at(max, "san", 3),
        "attention_and_mlp_residual_at_depth_3": at(max, "san+mlp", 3),
        "attention_and_skip_residual_at_last_depth": at(min, "san+skip", -1),
        "whole_residual_at_last_depth": at(min, "whole", -1),
        "largest_difference_from_published": [
            _extreme(max, [apart for one in some for apart in one["largest_difference"].values()]) for some in by_seed
        ],
    }


def _extreme(pick: Pick, values: Sequence[Number]) -> float:
    """The largest or smallest; NaN as soon as one is none, which `max` would pass over."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(pick(known)) if known and len(known) == len(values) else math.nan


def residual_figure(found: Sequence[Record]) -> Figure:
    rows = []
    for shape in dict.fromkeys(one["shape"] for one in found):
        seeds = [one for one in found if one["shape"] == shape]
        for name, theirs in published(shape).curves.items():
            rows += _rows([one["curves"][name] for one in seeds], name, shape)
            # what is published as 0 is only known to be below 0.00005
            known = [(depth, value) for depth, value in enumerate(theirs) if value]
            rows += [Point(x, y, name, shape, dashed=True) for x, y in known]
        for name in seeds[0]["as_cut_by_the_authors"]:
            rows += _rows([one["as_cut_by_the_authors"][name] for one in seeds], f"{name}, activation kept", shape)
    caption = (
        "Random weights. Full: ours, median and range over seeds; dashed: the paper's, of other sequences and seeds. "
        "The paper's Albert without MLPs keeps their activation."
    )
    return Figure(
        "A-residual", "A. Residual against depth", caption, "depth", "relative residual", tuple(rows), log=True
    )


def _rows(seeds: Sequence[Sequence[Number]], series: str, panel: str) -> list[Point]:
    return [Point.over(values, depth, series, panel) for depth, values in enumerate(zip(*seeds, strict=True))]


def residual_remarks(found: Sequence[Record]) -> tuple[str, ...]:
    """Where a published curve is not of what it is called."""
    said = []
    for shape in dict.fromkeys(one["shape"] for one in found if one["as_cut_by_the_authors"]):
        seeds = [one for one in found if one["shape"] == shape]
        without = median([one["curves"]["san+skip"][-1] for one in seeds])
        kept = median([one["as_cut_by_the_authors"]["san+skip"][-1] for one in seeds])
        theirs = published(shape).curves["san+skip"][-1]
        said.append(
            f"{shape} with skips ends at {without:.3f} without its MLP, where the paper has {theirs:.3f}. The authors' "
            f"surgery leaves the MLP's activation in: cut so, ours ends at {kept:.3f}. The published curves of {shape} "
            "are set beside ours cut their way; the claims on skips are about attention and skips alone."
        )
    return tuple(said)
