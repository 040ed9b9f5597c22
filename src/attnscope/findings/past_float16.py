"""Float16 overflow: an activation above 65,504, the largest number of float16.

`massive_activation` finds sudden steps. An activation that grows in smaller steps can also pass the limit, and is then
infinite in float16. One sequence is enough, so this reads the maximum over sequences, not the mean.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import Level, levels_of
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, within

FLOAT16 = 65504.0  # (2 - 2^-10) 2^15, the largest number of IEEE 754 binary16


@finding(
    order=52,
    reads=("spike",),
    summary="An entry of the residual stream is larger than any number of float16.",
    citation="IEEE 754, arXiv:2402.17762",
    severity="wrong if the model runs in float16, where it overflows; to_know in other precisions",
)
def past_float16(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for stack in survey.stacks:
        levels = levels_of(survey, stack)
        past = [level for level in levels if level.largest > FLOAT16]
        if not past:
            continue
        halves = any(level.site == "middle" for level in levels)
        first, worst = past[0], max(past, key=lambda level: level.largest)
        peak = worst.cell.peak.places()[0] or {}
        named = [f"{name} {peak[name]}" for name in ("channel", "token") if name in peak]
        spot = f" ({', '.join(named)})" if named else ""
        since = "" if first.writer[0] == worst.writer[0] else f"; it exceeds that {_since(first)}"
        yield Finding(
            kind=past_float16.name,
            severity="wrong" if survey.provenance.get("dtype") == "float16" else "to_know",
            stack=stack,
            layers=tuple(sorted({max(level.writer[0], 0) for level in (first, worst)})),
            heads=(),
            sentence=(
                f"Float16 would overflow: the largest entry of the residual stream is {number(worst.largest)}"
                f" {_place(worst, halves)}{within(stack, '', len(survey.stacks) > 1)}{spot}, and the largest float16 "
                "number is"
                f" {number(FLOAT16)}{since}."
            ),
            value=worst.largest,
            threshold=FLOAT16,
            threshold_name="float16",
            citation=past_float16.citation,
            advice=(
                "In float16 this entry becomes infinite, and so do later ones: run the model in bfloat16 or float32, "
                "and"
                " keep this channel in high precision when quantising."
            ),
            details={
                "measure": "spike",
                "block": worst.writer[0],
                "first_block": first.writer[0],
                "channel": peak.get("channel"),
                "token": peak.get("token"),
                "sample": peak.get("sample"),
            },
        )


def _place(level: Level, halves: bool) -> str:
    block, half = level.writer
    if block < 0:
        return "entering block 0"
    return f"after the {half} of block {block}" if halves else f"after block {block}"


def _since(level: Level) -> str:
    block = level.writer[0]
    return "from the input on" if block < 0 else f"from block {block} on"
