"""Massive activations: one or two channels of one token become thousands of times larger than the rest.

The largest |h| is tracked through the half-blocks in the order they write: the stream entering block 0, after its
attention write, entering block 1 (after the MLP write of block 0), and so on. A step-up block injects the spike, a
step-down block cancels it (arXiv:2603.05498); an activation above 100 counts as massive (Sun et al. 2024,
arXiv:2402.17762). A climb may take several half-blocks: consecutive rises of at least 1.5 times are one climb.

The largest entry hides the others: the highest climb also lists the channels that are massive by the rule of that paper
(above 100 and 1,000 times the median magnitude of their stream), and the next ones above 100, with their blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Literal

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.channels import OutlierChannel, outlier_channels
from attnscope.commands.scan.survey.readings import levels_of
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, ranges, within

_KEEPS_CLIMBING = 1.5
_OTHERS = 3  # channels named besides the massive ones


@finding(
    order=50,
    reads=("spike", "outlier_channels"),
    summary="One entry of the residual stream becomes thousands of times larger than the rest, or is cancelled again.",
    citation="arXiv:2603.05498, arXiv:2402.17762",
    severity="to_know where it appears, because it makes the model hard to quantise; note where it is cancelled",
)
def massive_activation(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for stack in survey.stacks:
        levels = levels_of(survey, stack)
        highest = max((level.size for level in levels), default=0.0)
        halves = any(level.site == "middle" for level in levels)
        tail = within(stack, "", len(survey.stacks) > 1)
        channels = outlier_channels(survey, stack, size=thresholds.spike_size, times=thresholds.spike_times)
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
            if kind is not None:  # a block without attention has only one half
                writer, half = f"block {block} ({kind})", "block"
            blocks = {level.writer[0] for level in levels[start + 1 : end + 1]}
            verb = "raise" if up else "lower"
            who = f"{writer} {verb}s"
            if len(blocks) > 1:
                who = f"blocks {ranges(blocks)}, by the largest factor {writer}, {verb}"
            channel, token = large.label("channel"), large.label("token")
            listed = channels if up and large.size >= thresholds.most_heads * highest else []
            fades = "shrinks" if after.size >= thresholds.spike_size else "disappears"
            yield Finding(
                kind=massive_activation.name,
                severity="to_know" if up else "note",
                stack=stack,
                layers=(block,),
                heads=(),
                sentence=(
                    f"A massive activation {'appears' if up else fades} in block {block}{tail}:"
                    f" {who} the largest entry of the residual stream from"
                    f" {number(before.size)} to {number(after.size)}{large.where()}."
                    f"{_listed(listed, token[0] if token else None, thresholds.spike_size)}"
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
                    "largest": large.largest,
                    "channel": channel[0] if channel else None,
                    "token": token[0] if token else None,
                    "sample": large.sample,
                    "channels": [outlier.to_json() for outlier in listed],
                },
            )


def _listed(channels: list[OutlierChannel], token: int | None, size: float) -> str:
    """Return sentences on the massive channels and on others above `size`; a token is named if it is not `token`."""
    massive = [channel.words(token) for channel in channels if channel.massive]
    others = [channel.words(token) for channel in channels if not channel.massive]
    said = f" Massive channels: {_joined(massive)}." if massive else ""
    if others:
        more = [f"{len(others) - _OTHERS} more"] if len(others) > _OTHERS else []
        said += f" {'Others' if massive else 'Channels'} above {number(size)}: {_joined(others[:_OTHERS] + more)}."
    return said


def _joined(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


_UP = (
    "Common in trained language models, on the first token or a delimiter. Keep these channels in high precision when"
    " quantising, avoid float16 (its largest number is 65,504), and exclude the token from averages over the stream."
)
_DOWN = "The counterpart of the step up: this block cancels the spike before the output. Do not prune or skip it alone."


def _climbs(sizes: list[float]) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of every run of steps that all rise, or all fall, by a factor of at least 1.5.

    A run may contain one quiet half-block between two steps, because spikes are often written by MLPs alone.
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
