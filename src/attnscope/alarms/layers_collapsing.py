"""Tokens that become alike from layer to layer: rank collapse (arXiv:2103.03404), which training can run into.

Rings where the relative residual of the stream is below `level`, and `fall` times smaller than when the run began.
While a model with norms behind its sums learns how often each token occurs, tokens are alike for a while without harm
(0.045 seen): the level is below that.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.watch.rule import History, Limits, Ringing, rule
from attnscope.core.finding import Severity
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=("relative_residual",),
    summary="Tokens of the residual stream become alike.",
    citation="arXiv:2103.03404, arXiv:2206.03126",
    advice="Warm up the learning rate, put norms before attention, or scale what blocks write by 1/sqrt(layers).",
    thresholds={"level": 0.02, "fall": 2.0, "complete": 0.01},
)
def layers_collapsing(history: History, limits: Limits) -> Iterator[Ringing]:
    for track in history.tracks("relative_residual"):
        if track.site != "stream":
            continue
        where = (track.now < limits["level"]) & (track.now * limits["fall"] < track.first)
        if not where.any():
            continue
        lowest = float(track.now[where].min())
        severity: Severity = "critical" if lowest < limits["complete"] else "warning"
        what = f"Tokens become alike (relative residual {number(lowest)})"
        yield Ringing(track.stack, track.site, where, lowest, limits["level"], what, severity)
