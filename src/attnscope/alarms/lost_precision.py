"""Weights lie on a coarse grid, and did not at first: they are rounded to bfloat16 or to a few bits after each step.

Updates that are smaller than half a step of the grid are then lost. A sample of float32 weights has almost no value
twice, one of bfloat16 weights about a third different values. A model whose weights were coarse at first is quiet.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import percent


@rule(
    severity="warning",
    reads=("distinct_weights",),
    summary="Weights are rounded to a coarse grid, and were not when the run began.",
    citation="this software",
    advice="Keep a float32 copy of the weights for the optimiser, or round stochastically.",
    thresholds={"level": 0.6, "before": 0.9},
)
def lost_precision(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("distinct_weights"):
        where = (track.now < limits["level"]) & (track.first >= limits["before"])
        if where.any():
            least = float(track.now[where].min())
            what = f"Only {percent(least)} of the sampled weights differ"
            yield Firing(track.stack, track.site, where, least, limits["level"], what)
