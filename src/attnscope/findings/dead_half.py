"""Dead half: the attention or the MLP of a block writes next to nothing into the stream, or ignores its input.

Such a part does not do what it was trained for: its output projection is zero, its norm is zero, or it was never
loaded. Both halves dead is a dead block. A half that writes the same at every token ignores its input.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, number, within


@finding(
    order=8,
    reads=(),
    summary="The attention or the MLP of a block writes next to nothing, or the same at every token.",
    citation="a comparison with the writes of all other blocks; see docs/scan.md",
)
def dead_half(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    parts = () if survey.trial is None else survey.trial.parts
    for stack in survey.stacks:
        own = [part for part in parts if part.stack == stack]
        dead = [part for part in own if min(part.write, part.varies) < thresholds.dead_write]
        if not dead:
            continue
        layers = tuple(sorted({part.layer for part in dead}))
        whole = [layer for layer in layers if sum(part.layer == layer for part in dead) > 1]
        least = min(dead, key=lambda part: (part.write, part.varies))
        what = f"{least.words} writes"
        if len(dead) > 1:
            what = f"{len(dead)} halves of {blocks(layers)} write"
        constant = all(part.write >= thresholds.dead_write for part in dead)
        how = "the same at every token" if constant else f"next to nothing ({number(least.write)} of the stream)"
        extra = f" {blocks(whole).capitalize()} {'is' if len(whole) == 1 else 'are'} dead as a whole." if whole else ""
        yield Finding(
            kind=dead_half.name,
            severity="wrong",
            stack=stack,
            layers=layers,
            heads=(),
            sentence=f"{what[:1].upper()}{what[1:]}{within(stack, '', len(survey.stacks) > 1)} {how}.{extra}",
            value=min(least.write, least.varies),
            threshold=thresholds.dead_write,
            threshold_name="dead_write",
            citation=dead_half.citation,
            advice=(
                "Check that the weights of this part are loaded and not zero: its output projection, its norm, and a"
                " residual scale. If it was pruned on purpose, remove it and save its time."
            ),
            details={"block": least.layer, "half": least.half, "parts": [[p.layer, p.half] for p in dead]},
        )
