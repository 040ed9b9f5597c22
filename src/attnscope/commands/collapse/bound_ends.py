"""Bounds from the first layer to every depth, as logarithms, beside the truth (see `matrix.collapse_bounds`)."""

from __future__ import annotations

from itertools import accumulate
from math import inf, log10, sqrt

from attnscope.commands.collapse.bounding import Bounding, Reading
from attnscope.commands.collapse.record import EndToEnd
from attnscope.hf.anatomy.mlp_bound import MlpBound
from attnscope.matrix.collapse_bounds import SPREAD_LIMIT, chained, stacked

NORMED = "norms stand between its layers, and the theorems leave norms out"
BESIDE = "its MLPs stand beside attention, and the theorems know none or one behind it"
BEYOND = f"the spread of its logits exceeds {SPREAD_LIMIT} and so the theorem's condition"


def end_to_end(
    seen: Bounding, variant: str, mlp: dict[int, MlpBound] | str | None = None, mlp_skip: bool = True
) -> tuple[EndToEnd, ...]:
    """Every bound that can be formed. With `mlp` (the variant has MLPs) Corollary 3.2 takes the theorem's place."""
    layers = seen.by_layer()
    depth = len(seen.stack.blocks)
    if sorted(layers) != list(range(depth)) or not seen.last or isinstance(mlp, str):
        return ()
    groups = [layers[layer] for layer in range(depth)]
    norms = sorted({block.writes.norm for block in seen.stack.blocks})
    normed = {"none": "", "parallel": BESIDE}.get(" and ".join(norms), NORMED)
    diameters = _truth([_largest(g, "before") for g in groups], max(d for d, _ in seen.last))
    residuals = _truth([_largest(g, "residual_before") for g in groups], max(r for _, r in seen.last))
    stretch = [_stretch(mlp, layer, mlp_skip) for layer in range(depth)]
    found = []
    strengths = [_log(_largest(g, "strength") * wide) for g, (wide, _) in zip(groups, stretch, strict=True)]
    steps = tuple(accumulate([diameters[0], *strengths]))
    found.append(EndToEnd("contraction", variant, "diameter", steps, diameters, not normed, normed))
    if any(r.cubic_factor is None or r.paper_factor is None for g in groups for r in g):
        return tuple(found)
    first = 10.0 ** diameters[0] if diameters[0] > -inf else 0.0
    cubic = chained([_largest(g, "cubic_factor") * w for g, (w, _) in zip(groups, stretch, strict=True)], first)
    found.append(EndToEnd("cubic", variant, "diameter", tuple(cubic), diameters, not normed, normed))
    factor = max(_largest(g, "paper_factor") * c for g, (_, c) in zip(groups, stretch, strict=True))
    paper = stacked(factor, 10.0 ** residuals[0] if residuals[0] > -inf else 0.0, depth)
    wide_spread = max(_largest(g, "spread") for g in groups) > SPREAD_LIMIT
    why = "; ".join(word for word in (normed, BEYOND if wide_spread else "") if word)
    name = "theorem 2.3" if mlp is None else "corollary 3.2"
    found.append(EndToEnd(name, variant, "residual", tuple(paper), residuals, not why, why))
    return tuple(found)


def _stretch(mlp: dict[int, MlpBound] | None, layer: int, skip: bool) -> tuple[float, float]:
    """By how much the MLP of a layer, with its own skip, can stretch diameters and the composite residual.

    ||X + f(X)|| <= (1 + lambda) ||X|| holds in every norm, hence in ||.||_1 and ||.||_inf apart; their geometric mean
    serves the composite, which is no norm itself.
    """
    if mlp is None:
        return 1.0, 1.0
    one = mlp[layer]
    extra = 1.0 if skip else 0.0
    return extra + one.spectral, sqrt((extra + one.one) * (extra + one.inf))


def _truth(values: list[float], last: float) -> tuple[float, ...]:
    return tuple(_log(value) for value in (*values, last))


def _largest(group: list[Reading], name: str) -> float:
    return max(float(getattr(reading, name)) for reading in group)


def _log(value: float) -> float:
    return log10(value) if value > 0 else -inf
