"""Lost precision: weights lie on a coarse grid.

Four bits are the usual precision of quantised models, and to know. Fewer, or a few matrices on a coarser grid than all
others, change what the model computes.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, count, number

USUAL = 4.0  # bits of quantised models that are in use


@finding(
    order=11,
    reads=(),
    summary="Weights lie on a coarse grid: the model was quantised, or a conversion lost precision.",
    citation="arXiv:2208.07339",
)
def lost_precision(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    weights = () if survey.trial is None else survey.trial.weights
    grids = [odd for odd in weights if odd.oddity == "grid"]
    if not grids:
        return
    common = [odd for odd in grids if not odd.parameter]
    coarse = [odd for odd in grids if odd.value < USUAL and odd.parameter]
    layers = tuple(sorted({odd.layer for odd in coarse if odd.layer is not None}))
    worst = min(coarse or grids, key=lambda odd: odd.value)
    if coarse:
        what = f"{count(len(coarse), 'weight')} of {blocks(layers)} {'is' if len(coarse) == 1 else 'are'}"
    else:
        what = "Most weights are" if common else f"{count(len(grids), 'weight')} are"
    wrong = bool(coarse) or worst.value < USUAL
    yield Finding(
        kind=lost_precision.name,
        severity="wrong" if wrong else "to_know",
        stack=worst.stack or next(iter(survey.stacks), ""),
        layers=layers,
        heads=(),
        sentence=f"{what} on a grid of {number(worst.value)} bits: 32 neighbouring entries have at most"
        f" {2**worst.value:.0f} different values.",
        value=worst.value,
        threshold=USUAL,
        threshold_name="bits of quantised models",
        citation=lost_precision.citation,
        advice=(
            "Load these weights again from a checkpoint in full precision, and check the conversion."
            if wrong
            else "The weights were quantised. Their numbers are a little different from those of the original."
        ),
        details={"parameters": [odd.parameter for odd in coarse], "block": layers[0] if layers else None},
    )
