"""The curves of figure 2 of arXiv:2103.03404, to set beside one's own.

dong2021_residual_curves.json holds the 24 curves (BERT, Albert, XLNet; random and pretrained weights; four variants)
as means over 32 sequences of 128 tokens at depths 0..12, to four decimals: a 0 there is anything below 0.00005. Their
text, their seeds and their float32 are not ours, and random weights are drawn as the library of the time drew them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isnan
from typing import Any

from attnscope.core.errors import RefusalError, nearest

NAMES = {"san": "SAN", "san+mlp": "SAN+MLP", "san+skip": "SAN+skip", "whole": "transformer"}
SHAPE_OF = {"BERT": "bert-base", "Albert": "albert-base", "XLNet": "xlnet-base"}
ROUNDED = 5e-5  # what is published as 0 lies below this


@dataclass(frozen=True)
class Published:
    """The paper's curves of one model, by our names of the variants."""

    model: str
    weights: str  # "random" or "trained"
    curves: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Difference:
    """Ours beside theirs at one depth; where theirs is rounded to 0, whether ours is below what rounds to 0 too."""

    variant: str
    depth: int
    ours: float
    theirs: float

    @property
    def apart(self) -> float:
        """|ours - theirs|, or by how much ours exceeds what they round to 0; NaN where ours is none."""
        return abs(self.ours - self.theirs) if self.theirs > 0 or isnan(self.ours) else max(0.0, self.ours - ROUNDED)


def published(model: str, weights: str = "random") -> Published:
    """The curves of `BERT`, `Albert` or `XLNet`, for `random` or `trained` weights; `as given` counts as trained."""
    known = {name.lower(): name for name in _all()}
    name = known.get(model.lower())
    if name is None:
        raise RefusalError(f"The paper has no curves of '{model}'.{nearest(model, list(_all()))}")
    weights = "trained" if weights == "as given" else weights
    if weights not in ("random", "trained"):
        raise RefusalError(f"Curves were published of random and of trained weights, not of '{weights}'.")
    found = _all()[name]["init" if weights == "random" else "pretrained"]
    return Published(name, weights, {ours: tuple(found[theirs]) for ours, theirs in NAMES.items()})


def differences(curves: Mapping[str, Any], reference: Published) -> tuple[Difference, ...]:
    """Every depth that both have, of every variant that both have; `curves` as in `Collapse.curves`."""
    return tuple(
        Difference(name, depth, float(ours), theirs)
        for name, curve in curves.items()
        if name in reference.curves
        for depth, (ours, theirs) in enumerate(zip(curve.mean, reference.curves[name], strict=False))
    )


@cache
def _all() -> dict[str, Any]:
    text = files("attnscope.records").joinpath("dong2021_residual_curves.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
