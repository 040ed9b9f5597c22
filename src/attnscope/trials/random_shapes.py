"""Residual against depth of random weights in published shapes, beside the published curves (2103.03404, figure 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnscope.core.experiment import Desk, Figure, Number, median
from attnscope.depth.collapse import collapse
from attnscope.depth.published import SHAPE_OF, differences, published

Record = Mapping[str, Any]
Pick = Callable[[list[float]], float]


def residual_curves(shape: str, sequences: int, tokens: int, seed: int, desk: Desk) -> dict[str, Any]:
    """Random weights of a published shape, in four variants; beside it how far the published means are from ours."""
    found = collapse(
        SHAPE_OF[shape],
        random_init=True,
        seeds=(seed,),
        samples=sequences,
        max_tokens=tokens,
        bounds=False,
        progress=desk.advance,
    )
    apart = differences(found.curves, published(shape))
    return {
        "shape": shape,
        "seed": seed,
        "curves": {name: list(curve.mean) for name, curve in found.curves.items()},
        "largest_difference": {
            name: _extreme(max, [one.apart for one in apart if one.variant == name]) for name in found.curves
        },
    }


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
        seeds = [one["curves"] for one in found if one["shape"] == shape]
        for name in seeds[0]:
            for depth, theirs in enumerate(published(shape).curves[name]):
                ours = [curves[name][depth] for curves in seeds]
                spread = {"y": median(ours), "low": _extreme(min, ours), "high": _extreme(max, ours)}
                rows.append({"x": depth, **spread, "series": name, "panel": shape})
                if theirs:  # what is published as 0 is only known to be below 0.00005
                    rows.append({"x": depth, "y": theirs, "series": name, "panel": shape, "dashed": True})
    caption = (
        "Random weights. Full: ours, median and range over seeds; dashed: the paper's, of other sequences and seeds."
    )
    return Figure(
        "A-residual", "A. Residual against depth", caption, "depth", "relative residual", tuple(rows), log=True
    )
