"""Rank collapse: the tokens of the residual stream become alike, so that further blocks add nothing.

The relative residual ||X - 1 x^T|| / ||X|| is 0 when all tokens are equal; pure attention drives it there
doubly exponentially with depth (Dong, Cordonnier, Loukas 2021, arXiv:2103.03404, Theorem 2.2).
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
    order=20,
    reads=("relative_residual",),
    summary="Places in the residual stream where tokens become alike.",
    citation="arXiv:2103.03404",
    severity="to_know: trained models that work have it too, and it matters when blocks are added or scaled",
)
def collapse(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "relative_residual"):
        means = grid.means
        if grid.site != "stream" or not np.isfinite(means).any():
            continue
        highest = np.fmax.accumulate(means)
        small = means < thresholds.collapse_residual
        fallen = means * thresholds.collapse_fall < highest
        low = tuple(int(layer) for layer in np.flatnonzero(small | fallen))
        if not low:
            continue
        lowest, last = int(np.nanargmin(means)), len(means) - 1
        start = int(np.nanargmax(means[: lowest + 1]))
        by_size = bool(small.any())
        if means[lowest] < thresholds.collapse_complete:
            continue  # see tokens_became_one
        yield Finding(
            kind=collapse.name,
            severity="to_know",
            stack=grid.stack,
            layers=low,
            heads=(),
            sentence=(
                f"Tokens become alike {entering(low, last)}{grid.tail}: the relative residual is"
                f" {number(means[lowest])} {entering([lowest], last)}"
                + (f", down from {number(means[start])} {entering([start], last)}." if start != lowest else ".")
            ),
            value=float(means[lowest]) if by_size else float(highest[lowest] / means[lowest]),
            threshold=thresholds.collapse_residual if by_size else thresholds.collapse_fall,
            threshold_name="collapse_residual" if by_size else "collapse_fall",
            citation=collapse.citation,
            advice=(
                "Check that skip connections and MLPs are present and not scaled down: attention alone loses rank "
                "with depth. Residual scaling, fewer blocks, or attention that keeps part of the identity can help."
            ),
            details={"measure": "relative_residual", "residual": [None if np.isnan(m) else float(m) for m in means]},
        )
