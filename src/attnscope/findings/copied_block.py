"""Copied block: matrices of one block equal those of another, number by number.

Blocks that share weights on purpose (ALBERT) have one set of parameters and no such finding. Models that were grown by
repeating blocks have it until they are trained.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, within


@finding(
    order=12,
    reads=(),
    summary="Matrices of one block equal those of another, number by number.",
    citation="a comparison of all weights; see docs/scan.md",
    severity="wrong: two blocks of a trained model are never equal, so weights were written into two places",
)
def copied_block(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    weights = () if survey.trial is None else survey.trial.weights
    copies = [odd for odd in weights if odd.oddity == "copy" and odd.layer is not None]
    for stack in dict.fromkeys(odd.stack for odd in copies):
        own = [odd for odd in copies if odd.stack == stack]
        layers = tuple(sorted({odd.layer for odd in own if odd.layer is not None}))
        what = "matrix" if len(own) == 1 else "matrices"
        is_copy = "is an exact copy" if len(own) == 1 else "are exact copies"
        yield Finding(
            kind=copied_block.name,
            severity="wrong",
            stack=stack,
            layers=layers,
            heads=(),
            sentence=(
                f"{len(own)} weight {what} of {blocks(layers)}{within(stack, '', len(survey.stacks) > 1)} {is_copy}:"
                f" {own[0].parameter} equals {own[0].of}."
            ),
            value=float(len(own)),
            threshold=0.0,
            threshold_name="copies",
            citation=copied_block.citation,
            advice=(
                "Check how the checkpoint was converted: the same weights were probably written into two places. If"
                " blocks were repeated on purpose, train the model further."
            ),
            details={"block": layers[0]},
        )
