"""Untrained block: every matrix of a block is as random as before training.

The largest singular value of a random matrix is known from its size and variance (Marchenko and Pastur 1967). Training
adds directions far above it to some matrix of every block, though not to all. A block whose matrices all stay below was
probably not loaded. A model that is random on purpose has no such finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, number, within


@finding(
    order=10,
    reads=(),
    summary="Every matrix of a block is as random as before training.",
    citation="Marchenko and Pastur 1967",
    severity="wrong: the block was probably not loaded",
)
def untrained_block(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    model = survey.provenance.get("model", {})
    trial = survey.trial
    if trial is None or model.get("weights") == "random":
        return
    described = {each.get("name"): each.get("layers") for each in model.get("stacks", [])}
    for stack in survey.stacks:
        depth = described.get(stack) or len({part.layer for part in trial.parts if part.stack == stack})
        ratios = {odd.layer: odd.value for odd in trial.weights if odd.oddity == "random" and odd.stack == stack}
        layers = tuple(sorted(n for n, ratio in ratios.items() if n is not None and ratio < thresholds.random_edge))
        if not layers or len(layers) >= depth:  # all blocks: a random model
            continue
        largest = max(ratios[layer] for layer in layers)
        yield Finding(
            kind=untrained_block.name,
            severity="wrong",
            stack=stack,
            layers=layers,
            heads=(),
            sentence=(
                f"{blocks(layers).capitalize()}{within(stack, '', len(survey.stacks) > 1)}"
                f" {'looks' if len(layers) == 1 else 'look'} untrained: the largest singular value of every matrix"
                f" there is at most {number(largest)} times that of a random matrix."
            ),
            value=largest,
            threshold=thresholds.random_edge,
            threshold_name="random_edge",
            citation=untrained_block.citation,
            advice=(
                "Check that the checkpoint holds these weights under the names that the model expects: missing names"
                " leave a block with the random weights that it started from."
            ),
            details={"block": layers[0]},
        )
