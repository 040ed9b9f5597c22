"""Collapse records with known curves, for tests of pages and words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attnscope.commands.collapse.record import Collapse, Curve, EndToEnd, LayerBounds, SkipBounds

TITLES = {
    "san": "attention only",
    "san+mlp": "attention + MLP",
    "san+skip": "attention + skip",
    "whole": "whole model",
}


def fallen(blocks: int, to: float, start: float = 0.9) -> tuple[float, ...]:
    """Return values that fall from `start` to `to`, linear on a logarithmic axis."""
    return tuple(start * (to / start) ** (depth / blocks) for depth in range(blocks + 1))


def sample_curves(blocks: int = 12) -> dict[str, tuple[float, ...]]:
    """Return curves: attention alone collapses, with or without MLPs; skips keep half, the whole model nearly all."""
    ends = {"san": 1e-9, "san+mlp": 2e-9, "san+skip": 0.42, "whole": 0.85}
    return {name: fallen(blocks, to) for name, to in ends.items()}


def collapse_of(means: Mapping[str, Sequence[float]], *, bounds: bool = False, floor: float = 2.2e-16) -> Collapse:
    """Return a collapse with these means, percentiles around them, and bounds of every kind."""
    blocks = max(len(mean) for mean in means.values()) - 1
    curves = {
        name: Curve(
            name, TITLES[name], tuple(mean), tuple(mean), tuple(0.7 * v for v in mean), tuple(1.2 * v for v in mean),
            (8,) * len(mean), (tuple(mean),), math.nan, 0,
        )
        for name, mean in means.items()
    }  # fmt: skip
    return Collapse(
        model="a/model",
        class_name="ModelForCausalLM",
        stack="decoder",
        norm_placement="pre",
        layers=blocks,
        heads=4,
        tokens=64,
        weights="trained",
        norm="1,inf",
        floor=floor,
        curves=curves,
        bounds=tuple(_bounds(block) for block in range(blocks)) if bounds else (),
        skip_bounds=tuple(SkipBounds(block, 4, 1.02, 0.4, 0) for block in range(blocks)) if bounds else (),
        ends=(
            EndToEnd("contraction", "san", "diameter", (0.0, -1.0), (0.0, -4.0), True),
            EndToEnd("theorem 2.3", "san", "residual", (0.0, 152.0), (0.3, -4.0), False, "norms stand between blocks"),
        )
        if bounds
        else (),
        order=3.02,
        pairs=9,
        notes=(
            "Only the decoder is measured here.",
            "The bounds from weights alone do not apply to this model: a mask.",
        ),
        provenance={"corpus": {"name": "a text", "sequences": 8}, "model": {"hash": "sha256:" + 64 * "0"}},
    )


def _bounds(block: int) -> LayerBounds:
    fall = 10.0**-block
    return LayerBounds(
        layer=block, sequences=4, before=fall, after=0.1 * fall, contraction=0.5 * fall, cubic=40 * fall, tau=0.1,
        tau_bound=0.2, residual_before=fall, residual_after=0.1 * fall, paper=900 * fall, spread=3.0, condition_met=1,
        rounding=1e-14, violations=0,
    )  # fmt: skip
