"""Tokens became one: at some depth all tokens are practically equal, and nothing after it can tell them apart.

Attention alone does this doubly exponentially with depth (arXiv:2103.03404); skips and MLPs prevent it in models that
work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import entering, number


@finding(
    order=19,
    reads=("relative_residual",),
    summary="Places in the residual stream where all tokens are practically equal.",
    citation="arXiv:2103.03404",
    severity="wrong: no later block can tell tokens apart",
)
def tokens_became_one(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "relative_residual"):
        low = np.flatnonzero(grid.means < thresholds.collapse_complete)
        if grid.site != "stream" or not len(low):
            continue
        lowest = int(np.nanargmin(grid.means))
        yield Finding(
            kind=tokens_became_one.name,
            severity="wrong",
            stack=grid.stack,
            layers=tuple(int(layer) for layer in low),
            heads=(),
            sentence=(
                f"All tokens are practically equal {entering([int(n) for n in low], len(grid.means) - 1)}{grid.tail}:"
                f" they differ by {number(grid.means[lowest])} of their norm."
            ),
            value=float(grid.means[lowest]),
            threshold=thresholds.collapse_complete,
            threshold_name="collapse_complete",
            citation=tokens_became_one.citation,
            advice=(
                "Check that skip connections and MLPs are present and not scaled down: attention alone loses rank"
                " with depth."
            ),
            details={"measure": "relative_residual"},
        )
