"""Updates become far larger than any before: a learning rate that is too high, or an optimiser without its moments.

The update ratio of every block is compared with its largest value at earlier looks, so a warm restart, which returns to
a rate that was used before, is quiet. The median over the blocks decides, after `looks` looks.
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
    thresholds={"factor": 1.5, "looks": 8.0},
)
def update_jump(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("update_ratio", "query"):
        earlier = track.values[:-1]
        if len(earlier) < limits["looks"]:
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = track.now / np.fmax.reduce(earlier, axis=0)
        known = ratio[np.isfinite(ratio)]
        middle = float(np.median(known)) if len(known) else 0.0
        if middle > limits["factor"]:
            where = ratio > limits["factor"]
            what = f"Updates are {number(middle)} times the largest before (median block)"
            yield Firing(track.stack, track.site, where, middle, limits["factor"], what)
