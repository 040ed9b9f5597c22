"""Copied block: matrices of one block equal those of another, number by number.

Blocks that share weights on purpose (ALBERT) have one set of parameters and no such finding. Models that were grown by
repeating blocks have it until they are trained.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, count


@finding(
    order=12,
    reads=(),
    summary="Matrices of one block equal those of another, number by number.",
    citation="a comparison of all weights; see docs/scan.md",
)
def copied_block(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    weights = () if survey.trial is None else survey.trial.weights
    copies = [odd for odd in weights if odd.oddity == "copy" and odd.layer is not None]
    if not copies:
        return
    layers = tuple(sorted({odd.layer for odd in copies if odd.layer is not None}))
    yield Finding(
        kind=copied_block.name,
        severity="wrong",
        stack=copies[0].stack,
        layers=layers,
        heads=(),
        sentence=(
            f"{count(len(copies), 'weight')} of {blocks(layers)}"
            f" {'equals another one' if len(copies) == 1 else 'equal other ones'}, number by number:"
            f" {copies[0].parameter} is {copies[0].of}."
        ),
        value=float(len(copies)),
        threshold=0.0,
        threshold_name="copies",
        citation=copied_block.citation,
        advice="Check how the checkpoint was converted: the same weights were probably written into two places.",
        details={"block": layers[0]},
    )
