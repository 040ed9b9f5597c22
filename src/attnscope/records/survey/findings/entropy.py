"""Two ends of attention entropy: heads that choose nothing (near-uniform), layers that choose one key only.

The largest possible entropy of a row with m keys is ln m. Over n tokens its mean is ln n without a mask, and
(1/n) sum_i ln i = ln(n!)/n under a causal mask. n is the mean number of tokens in a sequence (see `baseline`); since ln
is concave this is never below the true bound for sequences of mixed length, so a head called near-uniform is. A sliding
window lowers the true bound: uniform heads inside a window are then missed, never invented. Where some head exceeds the
bound, n does not belong to that place (a decoder that reads another length) and nothing is said. Over fewer than two
tokens there is nothing to choose, and nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.core.finding import Finding
from attnscope.core.words import count, layers, number, percent
from attnscope.records.survey.baseline import uniform_attention
from attnscope.records.survey.grid import grid_at, grids
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds

_ROUNDING = 1.001
_ROOM = 3.0
_SHORTEST = 2


def uniform(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "entropy"):
        known = uniform_attention(survey, grid.stack, grid.site)
        if known is None or known.length < _SHORTEST:
            continue
        bound = known.entropy
        if np.nanmax(grid.means, initial=0.0) > _ROUNDING * bound:
            continue
        mask = grid.means > thresholds.uniform_entropy * bound
        found = grid.chosen(mask)
        if not found:
            continue
        depths = sorted({layer for layer, _ in found})
        share = len(found) / grid.measured
        best = grid.strongest(mask)[0]
        yield Finding(
            kind="uniform_heads",
            severity="warning" if share > thresholds.most_heads else "info",
            stack=grid.stack,
            layers=tuple(depths),
            heads=found,
            sentence=(
                f"In {grid.portion(found)} attention is almost uniform: its entropy is above"
                f" {percent(thresholds.uniform_entropy)} of the largest possible {number(bound)} nats."
            ),
            value=float(grid.means[best] / bound),
            threshold=thresholds.uniform_entropy,
            threshold_name="uniform_entropy",
            citation="arXiv:2402.02098",
            advice=(
                "Such a head averages all tokens alike. In a model at initialisation this is expected; in a trained"
                " one look at the scale of its queries and keys, and whether it can be pruned."
            ),
            details={
                "measure": "entropy",
                "site": grid.site,
                "largest_entropy": bound,
                "share_of_heads": share,
            },
        )


def entropy_collapse(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    """Most heads of a layer are nearly one-hot (Zhai et al. 2023, arXiv:2303.06296: training then diverges).

    A head at rest on the first token is one-hot too, and harmless; where sinks explain the heads this stays a warning.
    """
    for grid in grids(survey, "entropy"):
        known = uniform_attention(survey, grid.stack, grid.site)
        if known is not None and (known.length < _SHORTEST or known.entropy < _ROOM * thresholds.entropy_floor):
            continue  # sequences so short that no row can have much entropy
        low = grid.means < thresholds.entropy_floor
        measured = np.isfinite(grid.means).sum(axis=1)
        shares = np.where(measured, low.sum(axis=1) / np.maximum(measured, 1), 0.0)
        collapsed = np.flatnonzero(shares > thresholds.most_heads)
        if not len(collapsed):
            continue
        sinks = grid_at(survey, "sink_mass", grid.stack, grid.site)
        resting = low & (sinks.means > thresholds.sink_mass) if sinks is not None else np.zeros_like(low)
        affected = low[collapsed].sum()
        idle = resting[collapsed].sum()
        deep = len(collapsed) > thresholds.most_heads * int((measured > 0).sum())
        rows = np.zeros_like(low)
        rows[collapsed] = low[collapsed]
        lowest = float(np.nanmin(grid.means[collapsed]))
        yield Finding(
            kind="entropy_collapse",
            severity="critical" if deep and idle < thresholds.most_heads * affected else "warning",
            stack=grid.stack,
            layers=tuple(int(layer) for layer in collapsed),
            heads=grid.chosen(rows),
            sentence=(
                f"Attention is nearly one-hot in most heads of {layers(int(n) for n in collapsed)}{grid.tail}: entropy"
                f" is below {number(thresholds.entropy_floor)} nats in {count(int(affected), 'head')}"
                + (f", {idle} of them at rest on the first token." if idle else ".")
            ),
            value=lowest,
            threshold=thresholds.entropy_floor,
            threshold_name="entropy_floor",
            citation="arXiv:2303.06296",
            advice=(
                "In training this comes before divergence: lower the learning rate, normalise queries and keys, or"
                " reparametrise their weights by their spectral norm (sigma-reparam)."
            ),
            details={"measure": "entropy", "site": grid.site, "resting_on_first_token": int(idle)},
        )
