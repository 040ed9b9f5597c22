"""Lost precision: weights lie on a coarse grid.

A grid in most blocks is the precision in which a model was published, and to know. A coarser grid in a few blocks is an
accident of a conversion.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, count, number

USUAL = 4.0  # bits of quantised models that are in use
FEW = 0.34  # share of blocks with a coarser grid that is an accident and not the precision of the model


@finding(
    order=11,
    reads=(),
    summary="Weights lie on a coarse grid: the model was quantised, or a conversion lost precision.",
    citation="arXiv:2208.07339",
)
def lost_precision(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    trial = survey.trial
    grids = [] if trial is None else [odd for odd in trial.weights if odd.oddity == "grid"]
    if trial is None or not grids:
        return
    depth = len({(part.stack, part.layer) for part in trial.parts}) or 1
    coarse = [odd for odd in grids if odd.value < USUAL and odd.parameter]
    layers = tuple(sorted({odd.layer for odd in coarse if odd.layer is not None}))
    # A grid in most blocks is the precision in which the model was published. One in a few blocks is an accident.
    wrong = bool(layers) and len(layers) <= FEW * depth
    worst = min(coarse if wrong else grids, key=lambda odd: odd.value)
    what = "Most weights are"
    if wrong:
        what = f"{count(len(coarse), 'weight')} of {blocks(layers)} {'is' if len(coarse) == 1 else 'are'}"
    elif all(odd.parameter for odd in grids):
        what = f"{count(len(grids), 'weight')} {'is' if len(grids) == 1 else 'are'}"
    yield Finding(
        kind=lost_precision.name,
        severity="wrong" if wrong else "to_know",
        stack=worst.stack or next(iter(survey.stacks), ""),
        layers=layers if wrong else (),
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
        details={"parameters": [odd.parameter for odd in coarse], "block": layers[0] if wrong else None},
    )
