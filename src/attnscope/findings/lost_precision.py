"""Lost precision: weights lie on a coarse grid.

A grid in most blocks is the precision in which a model was published, and to know. A coarser grid in a few blocks is an
accident of a conversion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import OddWeight
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, number, percent, within

USUAL = 4.0  # bits of quantised models that are in use
FEW = 0.34  # share of blocks with a coarser grid that is an accident and not the precision of the model


@finding(
    order=11,
    reads=(),
    summary="Weights lie on a coarse grid: the model was quantised, or a conversion lost precision.",
    citation="arXiv:2208.07339",
    severity=(
        "wrong if a few blocks have fewer than 4 bits, which a conversion lost; to_know otherwise, because the model "
        "was published like that"
    ),
)
def lost_precision(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    trial = survey.trial
    grids = [] if trial is None else [odd for odd in trial.weights if odd.oddity == "grid"]
    if trial is None or not grids:
        return
    depth = len({(part.stack, part.layer) for part in trial.parts})
    coarse = [odd for odd in grids if odd.value < USUAL and odd.parameter and odd.layer is not None]
    if not 0 < len({(odd.stack, odd.layer) for odd in coarse}) <= FEW * depth:
        common = [odd for odd in grids if not odd.parameter]
        yield _finding(common or grids, "", survey.stacks[0] if survey.stacks else "", wrong=False)
        return
    for stack in dict.fromkeys(odd.stack for odd in coarse):
        where = within(stack, "", len(survey.stacks) > 1)
        yield _finding([odd for odd in coarse if odd.stack == stack], where, stack, wrong=True)


def _finding(odd: Sequence[OddWeight], where: str, stack: str, *, wrong: bool) -> Finding:
    worst = min(odd, key=lambda each: each.value)
    layers = tuple(sorted({each.layer for each in odd if each.layer is not None})) if wrong else ()
    who = f"{len(odd)} weight {'matrix' if len(odd) == 1 else 'matrices'}"
    if not worst.parameter:
        who = f"{percent(worst.share)} of the weight matrices"
    if layers:
        who += f" of {blocks(layers)}{where}"
    lie = "lies" if len(odd) == 1 and worst.parameter else "lie"
    grid = f"on a grid of {number(worst.value)} bits"
    if len({each.value for each in odd}) > 1:
        grid = f"on coarse grids, the coarsest of {number(worst.value)} bits"
    return Finding(
        kind=lost_precision.name,
        severity="wrong" if wrong else "to_know",
        stack=stack,
        layers=layers,
        heads=(),
        sentence=f"{who} {lie} {grid}: 32 neighbouring entries have at most {2**worst.value:.0f} different values.",
        value=worst.value,
        threshold=USUAL,
        threshold_name="bits of quantised models",
        citation=lost_precision.citation,
        advice=(
            "Load these weights again from a checkpoint in full precision, and check the conversion."
            if wrong
            else "These weights were quantised: compare the loss with that of the original (`attnscope compare`)."
        ),
        details={
            "parameters": [each.parameter for each in odd if wrong],
            "block": layers[0] if layers else None,
        },
    )
