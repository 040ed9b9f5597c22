"""Uniform heads: attention spread almost evenly over all keys.

The largest possible entropy of a row with m keys is ln m. Its mean over n tokens is ln n without a mask, and (1/n)
sum_i ln i = ln(n!)/n under a causal mask. n is the mean number of tokens in a sequence. ln is concave, so this is never
below the true bound for sequences of mixed length, and there are no false positives. A sliding window lowers the true
bound: uniform heads inside a window are then missed. If some head exceeds the bound, n is wrong there (a decoder that
reads another length), and there is no finding. Fewer than two tokens give no finding either.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import SHORTEST, grids, uniform_attention
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, percent

_ROUNDING = 1.001


@finding(
    order=80,
    reads=("entropy",),
    summary="Heads whose attention is almost uniform.",
    citation="arXiv:2402.02098",
    severity="to_know if most heads are uniform, because they select nothing; else note",
)
def uniform_heads(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "entropy"):
        known = uniform_attention(survey, grid.stack, grid.site)
        if known is None or known.length < SHORTEST:
            continue
        bound = known.entropy
        if np.nanmax(grid.means, initial=0.0) > _ROUNDING * bound:
            continue
        mask = grid.means > thresholds.uniform_entropy * bound
        uniform_pairs = grid.chosen(mask)
        if not uniform_pairs:
            continue
        depths = sorted({layer for layer, _ in uniform_pairs})
        share = len(uniform_pairs) / grid.measured
        best = grid.strongest(mask)[0]
        yield Finding(
            kind=uniform_heads.name,
            severity="to_know" if share > thresholds.most_heads else "note",
            stack=grid.stack,
            layers=tuple(depths),
            heads=uniform_pairs,
            sentence=(
                f"In {grid.portion(uniform_pairs)} attention is almost uniform: its entropy is above"
                f" {percent(thresholds.uniform_entropy)} of the largest possible {number(bound)} nats."
            ),
            value=float(grid.means[best] / bound),
            threshold=thresholds.uniform_entropy,
            threshold_name="uniform_entropy",
            citation=uniform_heads.citation,
            advice=(
                "Such a head averages all tokens. At initialisation this is expected; in a trained model check the "
                "scale of its queries and keys, and whether the head can be pruned."
            ),
            details={
                "measure": "entropy",
                "site": grid.site,
                "largest_entropy": bound,
                "share_of_heads": share,
            },
        )
