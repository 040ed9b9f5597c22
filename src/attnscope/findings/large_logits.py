"""Large logits: queries and keys have grown so large that softmax selects one key and passes on no gradient.

In training the largest logit rises before entropy falls and the loss diverges; MuonClip scales the query and key
weights of a head down as soon as it passes 100 (arXiv:2507.20534). Like QK-Clip, this finding reads the largest logit
of any sequence, not the mean over sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number


@finding(
    order=35,
    reads=("max_logit",),
    summary="Heads whose largest logit is so large that training may diverge.",
    citation="arXiv:2507.20534",
    severity="to_know: it matters when the model is trained further or quantised",
)
def large_logits(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "max_logit"):
        largest = np.full_like(grid.means, -np.inf)
        for layer, cell in grid.cells.items():
            largest[layer] = np.where(np.isfinite(grid.means[layer]), cell.moments.maximum, -np.inf)
        mask = largest > thresholds.max_logit
        large = grid.chosen(mask)
        if not large:
            continue
        worst = max(large, key=lambda head: (largest[head], head))
        yield Finding(
            kind=large_logits.name,
            severity="to_know",
            stack=grid.stack,
            layers=tuple(sorted({layer for layer, _ in large})),
            heads=large,
            sentence=(
                f"In {grid.portion(large)} logits pass {number(thresholds.max_logit)}; the largest is"
                f" {number(float(largest[worst]))}, in head {worst[1]} of block {worst[0]}."
            ),
            value=float(largest[worst]),
            threshold=thresholds.max_logit,
            threshold_name="max_logit",
            citation=large_logits.citation,
            advice=(
                "In training this comes before divergence: normalise queries and keys, or scale the weights of such"
                " heads down after each step (QK-Clip; `attnscope treat --remedy qk_clip`). In a finished model keep"
                " logits in float32: bfloat16 rounds a logit of 100 by up to a quarter."
            ),
            details={"measure": "max_logit", "site": grid.site, **grid.peak(worst)},
        )
