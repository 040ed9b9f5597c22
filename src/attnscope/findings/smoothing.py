"""Over-smoothing: all tokens point in the same direction, whatever their norm (Shi et al. 2022, arXiv:2202.08625).

One strong channel shared by all tokens gives a high cosine, so this alone does not prove a collapse.
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
    order=40,
    reads=("token_cosine",),
    summary="Places in the stream where tokens point in the same direction.",
    citation="arXiv:2202.08625",
    severity="to_know: trained models that work have it too, and it matters when blocks are added",
)
def smoothing(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "token_cosine"):
        if grid.site != "stream":
            continue
        alike = tuple(int(layer) for layer in np.flatnonzero(grid.means > thresholds.token_cosine))
        if not alike:
            continue
        most, last = int(np.nanargmax(grid.means)), len(grid.means) - 1
        yield Finding(
            kind=smoothing.name,
            severity="to_know",
            stack=grid.stack,
            layers=alike,
            heads=(),
            sentence=(
                f"Tokens point nearly the same way {entering(alike, last)}{grid.tail}: their mean cosine is"
                f" {number(grid.means[most])} {entering([most], last)}."
            ),
            value=float(grid.means[most]),
            threshold=thresholds.token_cosine,
            threshold_name="token_cosine",
            citation=smoothing.citation,
            advice=(
                "Check the relative residual too: if it is high, the cause is one strong channel shared by all "
                "tokens, and centring the embeddings removes it; if it is low, the blocks are collapsing."
            ),
            details={"measure": "token_cosine"},
        )
