"""Tokens become alike from block to block: rank collapse (arXiv:2103.03404) in training.

The rule fires if the relative residual of the stream is below `level`, and `fall` times smaller than when the run
began. Early in the training of a post-norm model, while it learns token frequencies, tokens are alike for a while
without harm (0.045 observed), so the level is below that.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.watch.look import AlarmSeverity
from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=("relative_residual",),
    summary="Tokens of the residual stream become alike.",
    citation="arXiv:2103.03404, arXiv:2206.03126",
    advice="Warm up the learning rate, put norms before attention, or scale the output of blocks by 1/sqrt(blocks).",
    thresholds={"level": 0.02, "fall": 2.0, "complete": 0.01},
)
def layers_collapsing(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("relative_residual"):
        if track.site != "stream":
            continue
        where = (track.now < limits["level"]) & (track.now * limits["fall"] < track.first)
        if not where.any():
            continue
        lowest = float(track.now[where].min())
        severity: AlarmSeverity = "critical" if lowest < limits["complete"] else "warning"
        what = f"Tokens become alike (relative residual {number(lowest)})"
        yield Firing(track.stack, track.site, where, lowest, limits["level"], what, severity)
