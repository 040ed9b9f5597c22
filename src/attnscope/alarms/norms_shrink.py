"""The gains of norms shrink in a few steps: weight decay acts on them, or the learning rate is far too high.

In a pre-norm block smaller gains make logits and outputs smaller, so attention becomes flat. Healthy training moves
gains by a few per cent in a hundred steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import count, percent


@rule(
    severity="warning",
    reads=("norm_gain",),
    summary="The gains of a block's norms shrink fast.",
    citation="this software",
    advice="Check the learning rate, and exclude norms and biases from weight decay.",
    thresholds={"fall": 0.1, "window": 100.0},
)
def norms_shrink(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("norm_gain"):
        recent, steps = track.within(limits["window"])
        highest = np.fmax.reduce(recent, axis=0)
        fall = 1 - track.now / np.where(highest > 0, highest, np.nan)
        where = fall > limits["fall"]
        if where.any():
            worst = float(fall[where].max())
            what = f"The gains of norms fell by {percent(worst)} within {count(steps, 'step')}"
            yield Firing(track.stack, track.site, where, worst, limits["fall"], what)
