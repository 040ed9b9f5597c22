"""Entropy collapse: blocks in which most heads are nearly one-hot.

In training this comes before divergence (Zhai et al. 2023, arXiv:2303.06296). An idle head that attends to the first
token is one-hot too, and harmless. So the finding is wrong only if most blocks are affected and sinks do not explain
it, and a note if sinks explain all of the heads and only some blocks are affected. Fewer than two tokens give no
finding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import SHORTEST, grid_at, grids, uniform_attention
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, count, number

_ROOM = 3.0
_ADVICE = (
    "In training this comes before divergence: lower the learning rate, normalise queries and keys, or reparametrise"
    " their weights by their spectral norm (sigma-reparam)."
)
_AT_REST = "They are sinks on the first token, as in many trained models: nothing needs to be fixed."


@finding(
    order=30,
    reads=("entropy", "sink_mass"),
    summary="Blocks in which most heads attend to one token only.",
    citation="arXiv:2303.06296",
    severity=(
        "wrong if most blocks are one-hot and sinks do not explain it, which no healthy model of the atlas shows; "
        "note if sinks explain all of it in a few blocks; to_know otherwise"
    ),
)
def entropy_collapse(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "entropy"):
        known = uniform_attention(survey, grid.stack, grid.site)
        if known is not None and (known.length < SHORTEST or known.entropy < _ROOM * thresholds.entropy_floor):
            continue  # sequences are so short that no row can have much entropy
        low = grid.means < thresholds.entropy_floor
        measured = np.isfinite(grid.means).sum(axis=1)
        shares = np.where(measured, low.sum(axis=1) / np.maximum(measured, 1), 0.0)
        collapsed = np.flatnonzero(shares > thresholds.most_heads)
        if not len(collapsed):
            continue
        sinks = grid_at(survey, "sink_mass", grid.stack, grid.site)
        resting = low & (sinks.means > thresholds.sink_mass) if sinks is not None else np.zeros_like(low)
        affected, idle = int(low[collapsed].sum()), int(resting[collapsed].sum())
        deep = len(collapsed) > thresholds.most_heads * int((measured > 0).sum())
        still = low & (sinks.means > 1 - thresholds.sink_mass) if sinks is not None else np.zeros_like(low)
        unusual = deep and idle < thresholds.most_heads * affected  # no healthy model of the atlas shows this
        explained = not deep and still[collapsed].sum() == affected
        rows = np.zeros_like(low)
        rows[collapsed] = low[collapsed]
        lowest = float(np.nanmin(grid.means[collapsed]))
        yield Finding(
            kind=entropy_collapse.name,
            severity="note" if explained else "wrong" if unusual else "to_know",
            stack=grid.stack,
            layers=tuple(int(layer) for layer in collapsed),
            heads=grid.chosen(rows),
            sentence=(
                f"Attention is nearly one-hot in most heads of {blocks(int(n) for n in collapsed)}{grid.tail}: entropy"
                f" is below {number(thresholds.entropy_floor)} nats in {count(affected, 'head')}"
                + (f", {idle} of them with a sink on the first token." if idle else ".")
            ),
            value=lowest,
            threshold=thresholds.entropy_floor,
            threshold_name="entropy_floor",
            citation=entropy_collapse.citation,
            advice=_AT_REST if explained else _ADVICE,
            details={"measure": "entropy", "site": grid.site, "resting_on_first_token": idle},
        )
