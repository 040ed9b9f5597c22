"""Dead half: the attention or the MLP of a block writes next to nothing into the stream, or ignores its input.

Such a part does not do what it was trained for: its output projection is zero, its norm is zero, or it was never
loaded. Both halves dead is a dead block. A half that writes the same at every token ignores its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import Part
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, number, within


@finding(
    order=8,
    reads=(),
    summary="The attention or the MLP of a block writes next to nothing, or the same at every token.",
    citation="a comparison with the writes of all other blocks; see docs/scan.md",
    severity="wrong: a part of the model does nothing",
)
def dead_half(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    parts = () if survey.trial is None else survey.trial.parts
    for stack in survey.stacks:
        own = [part for part in parts if part.stack == stack]
        dead = [part for part in own if min(part.write, part.varies) < thresholds.dead_write]
        if not dead:
            continue
        layers = tuple(sorted({part.layer for part in dead}))
        least = min(dead, key=lambda part: (part.write, part.varies))
        where = within(stack, "", len(survey.stacks) > 1)
        yield Finding(
            kind=dead_half.name,
            severity="wrong",
            stack=stack,
            layers=layers,
            heads=(),
            sentence=" ".join(_sentences(dead, where, thresholds.dead_write)),
            value=min(least.write, least.varies),
            threshold=thresholds.dead_write,
            threshold_name="dead_write",
            citation=dead_half.citation,
            advice=(
                "Check that the weights of this part are loaded and not zero: its output projection, its norm, and its"
                " residual scale. If it was pruned on purpose, remove it: the model gets faster and stays the same."
            ),
            details={"block": least.layer, "half": least.half, "parts": [[p.layer, p.half] for p in dead]},
        )


def _sentences(dead: Sequence[Part], where: str, limit: float) -> Iterator[str]:
    """Yield what writes next to nothing, what writes the same everywhere, and which blocks are dead as a whole."""
    silent = [part for part in dead if part.write < limit]
    constant = [part for part in dead if part.write >= limit]
    if silent:
        most = max(part.write for part in silent)
        size = "nothing" if most == 0 else f"next to nothing: {_at_most(silent)}{number(most)} of the stream"
        yield f"{_subject(silent, where)} {size}."
    if constant:
        most = max(part.varies for part in constant)
        yield (
            f"{_subject(constant, where)} the same at every token: {_at_most(constant)}{number(most)} of the output"
            " depends on the token."
        )
    whole = sorted({part.layer for part in dead if sum(other.layer == part.layer for other in dead) > 1})
    if whole:
        yield f"{blocks(whole).capitalize()}{where} {'is' if len(whole) == 1 else 'are'} dead as a whole."


def _subject(parts: Sequence[Part], where: str) -> str:
    """Return `The MLP of block 3 writes` or `3 half blocks (blocks 2-3) write`."""
    if len(parts) == 1:
        return f"T{parts[0].words[1:]}{where} writes"
    return f"{len(parts)} half blocks ({blocks(part.layer for part in parts)}{where}) write"


def _at_most(parts: Sequence[Part]) -> str:
    return "at most " if len(parts) > 1 else ""
