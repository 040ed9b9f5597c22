"""Lost precision: weights lie on a coarse grid.

A grid in most blocks is the precision in which a model was published, and to know: many models in 8 bits have fewer
than 16 values among 32 neighbours. A coarser grid in a few blocks is an accident of a conversion, if several matrices
of a block have it or one is very coarse: a single matrix with a few large entries leaves its small ones on few steps
of an 8-bit grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import OddWeight
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, number, percent, within

USUAL = 4.0  # bits of quantised models that are in use
ALONE = 3.5  # bits below which one matrix is enough: 11 values among 32 neighbours
FEW = 0.34  # largest share of blocks with a coarse grid that is an accident


@finding(
    order=11,
    reads=(),
    summary="Weights lie on a coarse grid: the model was quantised, or a conversion lost precision.",
    citation="a count of distinct weights; see docs/scan.md",
    severity=(
        "wrong in a few blocks below 4 bits, an accident of a conversion; to_know in most blocks, as in quantised"
        " models"
    ),
)
def lost_precision(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    weights = () if survey.trial is None else survey.trial.weights
    grids = [odd for odd in weights if odd.oddity == "grid"]
    whole = min((odd for odd in grids if not odd.parameter), key=lambda odd: odd.value, default=None)
    some = [odd for odd in grids if odd.parameter and (whole is None or odd.value < min(whole.value, USUAL))]
    coarse = [odd for odd in some if odd.value < USUAL] or some
    if whole is not None and not coarse:
        every = whole.share == 1.0
        share = "All" if every else "Over 99% of the" if whole.share > 0.99 else f"{percent(whole.share)} of the"
        subject = f"{share} weight matrices of blocks lie"
        yield _finding(whole, subject, survey.stacks[:1], (), wrong=False)
    parts = () if survey.trial is None else survey.trial.parts
    for stack in dict.fromkeys(odd.stack for odd in coarse):
        own = [odd for odd in coarse if odd.stack == stack]
        layers = tuple(sorted({odd.layer for odd in own if odd.layer is not None}))
        noun, verb = ("matrix", "lies") if len(own) == 1 else ("matrices", "lie")
        where = f" of {blocks(layers)}{within(stack, '', len(survey.stacks) > 1)}" if layers else ""
        worst = min(own, key=lambda odd: odd.value)
        depth = max(len({part.layer for part in parts if part.stack == stack}), 1)
        together = max(Counter(odd.layer for odd in own).values(), default=0)
        sure = worst.value < ALONE or (worst.value < USUAL and together > 1)
        wrong = sure and len(layers) <= max(1, FEW * depth)
        yield _finding(worst, f"{len(own)} weight {noun}{where} {verb}", (stack,), layers, own, wrong=wrong)


def _finding(
    worst: OddWeight,
    subject: str,
    stacks: tuple[str, ...],
    layers: tuple[int, ...],
    own: Sequence[OddWeight] = (),
    *,
    wrong: bool,
) -> Finding:
    several = len({odd.value for odd in own}) > 1
    grid = f"on {'coarse grids, the coarsest' if several else 'a grid'} of {number(worst.value)} bits"
    return Finding(
        kind=lost_precision.name,
        severity="wrong" if wrong else "to_know",
        stack=next(iter(stacks), ""),
        layers=layers,
        heads=(),
        sentence=(
            f"{subject} {grid}: 32 neighbouring entries have at most {2**worst.value:.0f} different values"
            f"{' there' if several else ''}."
        ),
        value=worst.value,
        threshold=USUAL,
        threshold_name="bits of quantised models",
        citation=lost_precision.citation,
        advice=(
            "Load these weights again from a checkpoint in full precision, and check the conversion."
            if wrong
            else "These weights were quantised: compare the loss with that of the original (`attnscope compare`)."
        ),
        details={"parameters": [odd.parameter for odd in own], "block": layers[0] if layers else None},
    )
