"""Updates become far larger than any before: a learning rate that is too high, or an optimiser without its moments.

The update ratio of every block is compared with its largest value at earlier looks, so a warm restart, which returns to
a rate that was used before, is quiet. The median over the blocks decides, at two looks in a row and after `looks` looks
to compare with.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=("update_ratio",),
    summary="Updates of the weights become larger than all before.",
    citation="arXiv:2309.14322",
    advice="Check the learning rate, the gradient clipping and the state of the optimiser.",
    thresholds={"factor": 3.0, "looks": 8.0},
)
def update_jump(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("update_ratio", "query"):
        earlier, last = track.values[:-2], track.values[-2:]
        if len(earlier) < limits["looks"]:
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = last / np.fmax.reduce(earlier, axis=0)
        middles = [float(np.median(row[np.isfinite(row)])) if np.isfinite(row).any() else 0.0 for row in ratios]
        if min(middles) > limits["factor"]:
            where = ratios[-1] > limits["factor"]
            what = f"Updates are {number(middles[-1])} times the largest before (median block)"
            yield Firing(track.stack, track.site, where, middles[-1], limits["factor"], what)
