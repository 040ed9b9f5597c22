"""Massive activations: one or two channels of one token become thousands of times larger than the rest.

The largest |h| is followed through the half-blocks in the order they write: the stream entering block 0,
after its attention write, entering block 1 (after the MLP write of block 0), and so on. A step-up block
injects the spike, a step-down block cancels it (arXiv:2603.05498); an activation above 100 counts as massive
(Sun et al. 2024, arXiv:2402.17762). A climb may take several half-blocks: consecutive rises of at least 1.5
times are one climb.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, percent, ranges, within
from attnscope.records.survey.cell import Cell
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds

_KEEPS_CLIMBING = 1.5


@dataclass(frozen=True)
class _Level:
    """The largest activation at one place between two half-blocks."""

    layer: int
    site: str
    size: float
    cell: Cell

    @property
    def writer(self) -> tuple[int, str]:
        """The block and the half of it that wrote this state."""
        return (self.layer, "attention") if self.site == "middle" else (self.layer - 1, "MLP")


@finding(
    order=50,
    reads=("spike",),
    summary="One entry of the residual stream becomes thousands of times larger than the rest, or is cancelled again.",
    citation="arXiv:2603.05498, arXiv:2402.17762",
)
def massive_activation(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for stack in survey.stacks:
        levels = _levels(survey, stack)
        highest = max((level.size for level in levels), default=0.0)
        halves = any(level.site == "middle" for level in levels)
        tail = within(stack, "", len(survey.stacks) > 1)
        for start, end in _climbs([level.size for level in levels]):
            before, after = levels[start], levels[end]
            up = after.size > before.size
            large, small = (after, before) if up else (before, after)
            factor = large.size / small.size if small.size else float("inf")
            massive = large.size >= max(thresholds.spike_size, thresholds.spike_share * highest)
            if not massive or factor < thresholds.spike_step:
                continue
            steepest = max(range(start + 1, end + 1), key=lambda n: _steepness(levels[n - 1].size, levels[n].size))
            step = levels[steepest]
            block, half = step.writer
            writer = f"the {half} of block {block}" if halves else f"block {block}"
            kind = survey.kind_of_block(stack, block)
            if kind is not None:  # it has no attention to be told from its MLP
                writer, half = f"block {block} ({kind})", "block"
            blocks = {level.writer[0] for level in levels[start + 1 : end + 1]}
            verb = "raise" if up else "lower"
            who = f"{writer} {verb}s"
            if len(blocks) > 1:
                who = f"blocks {ranges(blocks)}, most of all {writer}, {verb}"
            channel, token = _label(large.cell, "channel"), _label(large.cell, "token")
            yield Finding(
                kind=massive_activation.name,
                severity="warning" if up else "info",
                stack=stack,
                layers=(block,),
                heads=(),
                sentence=(
                    f"A massive activation {'appears' if up else 'disappears'} in block {block}{tail}:"
                    f" {who} the largest entry of the residual stream from"
                    f" {number(before.size)} to {number(after.size)}{_where(channel, token)}."
                ),
                value=large.size,
                threshold=thresholds.spike_size,
                threshold_name="spike_size",
                citation=massive_activation.citation,
                advice=_UP if up else _DOWN,
                details={
                    "measure": "spike",
                    "step": "up" if up else "down",
                    "block": block,
                    "write": half.lower() if halves else "block",
                    "before": before.size,
                    "after": after.size,
                    "factor": factor if small.size else None,
                    "largest": float(large.cell.moments.maximum),
                    "channel": channel[0] if channel else None,
                    "token": token[0] if token else None,
                    "sample": (large.cell.peak.places()[0] or {}).get("sample"),
                },
            )


_UP = (
    "Common in trained language models, on the first token or a delimiter. Keep this channel in high precision when"
    " quantising, mind float16 (it ends at 65,504), and leave the token out of averages over the stream."
)
_DOWN = "The counterpart of the step up: this block cancels the spike before the output. Do not prune or skip it alone."


def _levels(survey: Survey, stack: str) -> list[_Level]:
    found = [
        _Level(key.layer, key.site, float(cell.moments.mean), cell)
        for key, cell in survey.cells.items()
        if key[:3] == ("spike", "value", stack) and cell.moments.count.any()
    ]
    return sorted(found, key=lambda level: (level.layer, level.site == "middle"))


def _climbs(sizes: list[float]) -> Iterator[tuple[int, int]]:
    """First and last index of every run of steps that all rise, or all fall, by at least 1.5 times.

    One quiet half-block between two steps belongs to the run: spikes are often the work of MLPs alone.
    """
    ways = [_way(before, after) for before, after in pairwise(sizes)]
    for n in range(1, len(ways) - 1):
        if ways[n] == 0 and ways[n - 1] == ways[n + 1]:
            ways[n] = ways[n - 1]
    start = 0
    for way, steps in groupby(ways):
        end = start + len(list(steps))
        if way:
            yield start, end
        start = end


def _way(before: float, after: float) -> Literal[-1, 0, 1]:
    if after > _KEEPS_CLIMBING * before:
        return 1
    return -1 if before > _KEEPS_CLIMBING * after else 0


def _steepness(before: float, after: float) -> float:
    low, high = sorted((before, after))
    return high / low if low else float("inf")


def _label(cell: Cell, name: str) -> tuple[int, float] | None:
    """The most common label and the share of sequences that have it."""
    return cell.tallies[name].most_common()[0] if name in cell.tallies else None


def _where(channel: tuple[int, float] | None, token: tuple[int, float] | None) -> str:
    named = [
        f"{name} {label[0]}" + (f" in {percent(label[1])} of sequences" if label[1] < 1 else "")
        for name, label in (("channel", channel), ("token", token))
        if label
    ]
    return f" ({', '.join(named)})" if named else ""
