"""Phase of random weights: untrained attention averages all keys, selects some, or is frozen on a few.

Only for scans of random weights. r is the spread of the logits divided by sqrt(2 ln n). Above r = 1 a few of n keys
hold all mass (`logit_phase` derives it; arXiv:2505.24333, arXiv:2510.05554). The predicted entropy is the share 1 - r^2
of the largest possible. Above the limit for uniform heads attention starts uniform, and tokens are averaged from the
first step on. Above r = 1 it starts frozen, and the gradients of queries and keys vanish. The finding gives both the
measured and the predicted value.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import SHORTEST, Grid, grid_at, grids, uniform_attention
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, percent

_ADVICE = {
    "uniform": (
        "Normal for small initial weights: heads learn to select keys, but until then every block averages its "
        "tokens, and deep stacks without skips collapse. Larger query and key weights, or queries and keys normalised "
        "with a learned scale, make attention less uniform at the start."
    ),
    "frozen": (
        "Each query starts on a few random keys and passes on almost no gradient: make the initial query and key "
        "weights smaller, or normalise queries and keys."
    ),
    "healthy": "Heads start between averaging all tokens and attending to a random one, so they can learn either.",
}


@finding(
    order=130,
    reads=("logit_phase", "entropy"),
    summary="Whether attention of random weights starts uniform, frozen or healthy.",
    citation="arXiv:2505.24333, arXiv:2510.05554",
    severity="to_know if attention starts frozen, because such a model trains badly; note otherwise",
)
def initial_phase(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    if survey.provenance.get("model", {}).get("weights") != "random":
        return
    for grid in grids(survey, "logit_phase"):
        known = uniform_attention(survey, grid.stack, grid.site)
        entropy = grid_at(survey, "entropy", grid.stack, grid.site)
        predicted = grid_at(survey, "logit_phase", grid.stack, grid.site, "predicted_entropy")
        if known is None or known.length < SHORTEST or entropy is None or predicted is None:
            continue
        shares = [float(np.nanmean(value.means)) / known.entropy for value in (predicted, entropy)]
        ratio = float(np.nanmean(grid.means))
        phase = "healthy"
        if ratio > thresholds.frozen_logits:
            phase = "frozen"
        elif shares[0] > thresholds.uniform_entropy:
            phase = "uniform"
        name = "uniform_entropy" if phase == "uniform" else "frozen_logits"
        yield Finding(
            kind=initial_phase.name,
            severity="to_know" if phase == "frozen" else "note",
            stack=grid.stack,
            layers=tuple(sorted(grid.cells)),
            heads=(),
            sentence=(
                f"At this width and depth attention{grid.tail} starts {phase}: the spread of logits is"
                f" {percent(ratio)} of what freezes a row, which predicts {percent(shares[0])} of the largest entropy;"
                f" measured: {percent(shares[1])}{_squares(survey, grid, phase)}."
            ),
            value=shares[0] if phase == "uniform" else ratio,
            threshold=getattr(thresholds, name),
            threshold_name=name,
            citation=initial_phase.citation,
            advice=_ADVICE[phase],
            details={
                "measure": "logit_phase",
                "site": grid.site,
                "phase": phase,
                "predicted_entropy_share": shares[0],
                "measured_entropy_share": shares[1],
            },
        )


def _squares(survey: Survey, grid: Grid, phase: str) -> str:
    """Return a phrase with the sum of squares of a frozen row (the mean mass on its key), else an empty string."""
    parts = [grid_at(survey, "logit_phase", grid.stack, grid.site, part) for part in ("predicted_squares", "squares")]
    if phase != "frozen" or None in parts:
        return ""
    predicted, measured = (number(float(np.nanmean(one.means))) for one in parts if one is not None)
    return f"; sum of squares of a row: {predicted} predicted, {measured} measured"
