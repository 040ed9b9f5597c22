"""Residual against depth for random weights in published shapes, compared with figure 2 of arXiv:2103.03404.

In the paper, ALBERT "without MLP" still has the MLP's activation: the authors' code replaces the two matrices of the
MLP by identities but keeps the GELU between them, whose output is added to the stream in every block. So their ALBERT
curves "SAN" and "SAN+skip" belong to stacks of attention and x -> x + gelu(x). We measure ALBERT without the MLP, for
the claims, and with the activation kept, for the comparison with their curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from attnscope.commands.collapse.record import SHAPE_OF, differences, published
from attnscope.commands.collapse.run import collapse
from attnscope.core.experiment import Figure, Number, Point, Session, median
from attnscope.hf.loading.in_memory import shaped
from attnscope.hf.loading.load import Loaded
from attnscope.papers.trials.curves import Rows, by_seed, select, steps

AS_CUT = {"san+mlp": "san", "whole": "san+skip"}  # our variants with the activation as MLP: their published names
Pick = Callable[[list[float]], float]


def residual_curves(shape: str, sequences: int, tokens: int, seed: int, session: Session) -> dict[str, Any]:
    """Return the residual curves of a shape with random weights, in four variants, and their distance to the paper."""
    sizes: dict[str, Any] = {"seeds": (seed,), "samples": sequences, "max_tokens": tokens, "bounds": False}
    ours = collapse(SHAPE_OF[shape], random_init=True, **sizes, progress=session.advance).curves
    compared = dict(ours)
    if shape == "Albert":
        kept = collapse(activation_kept, variants=tuple(AS_CUT), **sizes, progress=session.advance).curves
        compared |= {theirs: kept[variant] for variant, theirs in AS_CUT.items()}
    apart = differences(compared, published(shape))
    return {
        "shape": shape,
        "seed": seed,
        "curves": {name: list(curve.mean) for name, curve in ours.items()},
        "as_cut_by_the_authors": {name: list(compared[name].mean) for name in ours if compared[name] is not ours[name]},
        "largest_difference": {
            name: _extreme(max, [record.apart for record in apart if record.variant == name]) for name in ours
        },
    }


def activation_kept(seed: int, **changes: Any) -> Loaded:
    """Return a random ALBERT whose two MLP matrices are replaced by identities; `changes` are settings of its shape."""
    loaded = shaped(SHAPE_OF["Albert"], seed=seed, **changes)
    for path, _ in list(loaded.model.named_modules()):
        if path.rpartition(".")[2] in ("ffn", "ffn_output"):
            loaded.model.set_submodule(path, nn.Identity())
    return loaded


def residual_numbers(shapes: Rows, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Return each quantity per seed, at its worst value over shapes."""
    of_seeds = [rows for rows in by_seed(shapes, seeds) if rows]

    def at(pick: Pick, variant: str, depth: int) -> list[float]:
        return [_extreme(pick, [row["curves"][variant][depth] for row in rows]) for rows in of_seeds]

    return {
        "attention_alone_residual_at_depth_3": at(max, "san", 3),
        "attention_and_mlp_residual_at_depth_3": at(max, "san+mlp", 3),
        "attention_and_skip_residual_at_last_depth": at(min, "san+skip", -1),
        "whole_residual_at_last_depth": at(min, "whole", -1),
        "largest_difference_from_published": [
            _extreme(max, [apart for row in rows for apart in row["largest_difference"].values()]) for rows in of_seeds
        ],
    }


def _extreme(pick: Pick, values: Sequence[Number]) -> float:
    """Return the largest or smallest value, or NaN if any value is missing, which `max` would ignore."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return float(pick(finite)) if finite and len(finite) == len(values) else math.nan


def residual_figure(shapes: Rows) -> Figure:
    points = []
    for shape in dict.fromkeys(row["shape"] for row in shapes):
        seeds = select(shapes, shape=shape)
        for name, theirs in published(shape).curves.items():
            points += steps([row["curves"][name] for row in seeds], name, shape)
            # Of a published 0 we only know that it is below 0.00005.
            points += [Point(x, y, name, shape, dashed=True) for x, y in enumerate(theirs) if y]
        for name in seeds[0]["as_cut_by_the_authors"]:
            points += steps([row["as_cut_by_the_authors"][name] for row in seeds], f"{name}, activation kept", shape)
    caption = (
        "Random weights. Full: ours, median and range over seeds; dashed: the paper's, with other sequences and seeds. "
        "The paper's Albert without MLPs keeps their activation."
    )
    axes = ("depth", "relative residual")
    return Figure("A-residual", "A. Residual against depth", caption, *axes, tuple(points), log=True)


def residual_remarks(shapes: Rows) -> tuple[str, ...]:
    """Return remarks on published curves that do not measure what their name says."""
    words = []
    for shape in dict.fromkeys(row["shape"] for row in shapes if row["as_cut_by_the_authors"]):
        seeds = select(shapes, shape=shape)
        without = median([row["curves"]["san+skip"][-1] for row in seeds])
        kept = median([row["as_cut_by_the_authors"]["san+skip"][-1] for row in seeds])
        theirs = published(shape).curves["san+skip"][-1]
        words.append(
            f"{shape} with skips ends at {without:.3f} without its MLP, where the paper has {theirs:.3f}. The authors' "
            f"code leaves the MLP's activation in: done their way, ours ends at {kept:.3f}. The published curves of "
            f"{shape} are compared with ours done their way; the claims on skips are about attention and skips alone."
        )
    return tuple(words)
