"""Tables of bounds and measured values: for single blocks, for single blocks with a skip, and over several blocks.

Bounds over several blocks, from the first on, are logarithms (see `matrix.collapse_bounds`). They ignore norms, as the
theorems do: for a model with norms they are only listed for comparison, and a note says so.
"""

from __future__ import annotations

from itertools import accumulate
from math import inf, log10, sqrt
from statistics import median

from attnscope.commands.collapse.bounding import Bounding, Reading
from attnscope.commands.collapse.record import EndToEnd, LayerBounds, SkipBounds
from attnscope.hf.anatomy.mlp_bound import MlpBound
from attnscope.matrix.collapse_bounds import SPREAD_LIMIT, chained, stacked

NORMED = "there are norms between its blocks, and the theorems ignore norms"
BESIDE = "its MLPs run in parallel with attention, and the theorems allow an MLP only after it"
BEYOND = f"its logits spread by more than {SPREAD_LIMIT}, which the theorem does not allow"


def bounds_by_layer(seen: Bounding) -> tuple[LayerBounds, ...]:
    return tuple(_layer_bounds(layer, readings) for layer, readings in seen.by_layer().items())


def _layer_bounds(layer: int, readings: list[Reading]) -> LayerBounds:
    def middle(name: str) -> float | None:
        known = [value for r in readings if (value := getattr(r, name)) is not None]
        return median(known) if known else None

    spreads = [r.spread for r in readings if r.spread is not None]
    return LayerBounds(
        layer=layer,
        sequences=len(readings),
        before=median(r.before for r in readings),
        after=median(r.after for r in readings),
        contraction=median(r.contraction for r in readings),
        cubic=middle("cubic"),
        tau=median(r.tau for r in readings),
        tau_bound=middle("tau_bound"),
        residual_before=median(r.residual_before for r in readings),
        residual_after=median(r.residual_after for r in readings),
        paper=middle("paper"),
        spread=max(spreads) if spreads else None,
        condition_met=sum(s <= SPREAD_LIMIT for s in spreads) if spreads else None,
        rounding=median(r.rounding for r in readings),
        violations=sum(r.violations for r in readings),
    )


def skip_bounds_by_layer(seen: Bounding) -> tuple[SkipBounds, ...]:
    rows = []
    for layer, readings in seen.by_layer().items():
        known = [(r.growth, r.skip_strength) for r in readings if r.growth is not None]
        if known:
            growth, strength = (median(float(v or 0.0) for v in side) for side in zip(*known, strict=True))
            rows.append(SkipBounds(layer, len(known), growth, strength, sum(r.skip_violated for r in readings)))
    return tuple(rows)


def end_to_end(
    observed: Bounding, variant: str, mlp: dict[int, MlpBound] | str | None = None, mlp_skip: bool = True
) -> tuple[EndToEnd, ...]:
    """Return every bound from the first block to each depth that can be computed.

    If the variant has MLPs (`mlp` is given), Corollary 3.2 replaces Theorem 2.3.
    """
    layers = observed.by_layer()
    depth = len(observed.stack.blocks)
    if sorted(layers) != list(range(depth)) or not observed.last or isinstance(mlp, str):
        return ()
    groups = [layers[layer] for layer in range(depth)]
    norms = sorted({block.writes.norm for block in observed.stack.blocks})
    normed = {"none": "", "parallel": BESIDE}.get(" and ".join(norms), NORMED)
    diameters = _truth([_largest(g, "before") for g in groups], max(d for d, _ in observed.last))
    residuals = _truth([_largest(g, "residual_before") for g in groups], max(r for _, r in observed.last))
    stretch = [_stretch(mlp, layer, mlp_skip) for layer in range(depth)]
    bounds = []
    strengths = [_log(_largest(g, "strength") * wide) for g, (wide, _) in zip(groups, stretch, strict=True)]
    steps = tuple(accumulate([diameters[0], *strengths]))
    bounds.append(EndToEnd("contraction", variant, "diameter", steps, diameters, not normed, normed))
    if any(r.cubic_factor is None or r.paper_factor is None for g in groups for r in g):
        return tuple(bounds)
    first = 10.0 ** diameters[0] if diameters[0] > -inf else 0.0
    cubic = chained([_largest(g, "cubic_factor") * w for g, (w, _) in zip(groups, stretch, strict=True)], first)
    bounds.append(EndToEnd("cubic", variant, "diameter", tuple(cubic), diameters, not normed, normed))
    factor = max(_largest(g, "paper_factor") * c for g, (_, c) in zip(groups, stretch, strict=True))
    paper = stacked(factor, 10.0 ** residuals[0] if residuals[0] > -inf else 0.0, depth)
    wide_spread = max(_largest(g, "spread") for g in groups) > SPREAD_LIMIT
    why = "; ".join(word for word in (normed, BEYOND if wide_spread else "") if word)
    name = "theorem 2.3" if mlp is None else "corollary 3.2"
    bounds.append(EndToEnd(name, variant, "residual", tuple(paper), residuals, not why, why))
    return tuple(bounds)


def _stretch(mlp: dict[int, MlpBound] | None, layer: int, skip: bool) -> tuple[float, float]:
    """Return the factors by which the MLP of a block, with its skip, can stretch diameters and the composite residual.

    ||X + f(X)|| <= (1 + lambda) ||X|| holds in every norm, so in ||.||_1 and in ||.||_inf. The composite is not a norm,
    but the geometric mean of the two factors bounds it.
    """
    if mlp is None:
        return 1.0, 1.0
    norms, extra = mlp[layer], 1.0 if skip else 0.0
    return extra + norms.spectral, sqrt((extra + norms.one) * (extra + norms.inf))


def _truth(values: list[float], last: float) -> tuple[float, ...]:
    return tuple(_log(value) for value in (*values, last))


def _largest(group: list[Reading], name: str) -> float:
    return max(float(getattr(reading, name)) for reading in group)


def _log(value: float) -> float:
    return log10(value) if value > 0 else -inf
