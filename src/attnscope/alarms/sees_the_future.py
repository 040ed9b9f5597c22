"""A causal mask is lost: later tokens change what a block computes at earlier ones.

At every look one sequence runs beside a copy whose later half is replaced. In a causal model the earlier half does not
change at all. `future_influence` is the change there, relative to the change in the later half. The block that is named
is the first one that passes it on: the blocks after it inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import number


@rule(
    severity="critical",
    reads=("future_influence",),
    summary="Earlier tokens see later ones: the loss falls, and the model learns to copy.",
    citation="this software",
    advice="Restore the causal mask, and go back to a checkpoint from before this step.",
    thresholds={"level": 1e-3},
)
def sees_the_future(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("future_influence"):
        seen = (track.now > limits["level"]) & ~(track.first > limits["level"])
        if not seen.any():
            continue
        where = np.zeros_like(seen)
        where[int(seen.argmax())] = True
        worst = float(track.now[where].max())
        what = f"Later tokens change earlier ones (by {number(worst)} of their own change)"
        yield Firing(track.stack, track.site, where, worst, limits["level"], what)
