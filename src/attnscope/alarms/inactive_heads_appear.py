"""Heads that become inactive: their output is far below the mean of their block's heads (arXiv:2504.03889), and was
not when the run began.

`head_contribution` is a head's share of the block's write into the stream; multiplied by the number of heads it is
relative to the mean, like `inactive_heads`. The latter measures heads before the output projection, and is read only if
the former is missing. If all heads of a block fade together, their shares do not change until they are zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=("head_contribution", "inactive_heads"),
    summary="Heads whose output becomes almost nothing relative to the other heads of their block.",
    citation="arXiv:2504.03889",
    advice="A few such heads can be pruned; if there are many, lower the learning rate or weight decay.",
    thresholds={"level": 0.02, "fall": 4.0, "most": 0.5},
)
def inactive_heads_appear(history: History, limits: Limits) -> Iterator[Firing]:
    written = {(t.stack, t.site): t for t in history.tracks("head_contribution")}
    mixed = {(t.stack, t.site): t for t in history.tracks("inactive_heads")}
    for place, track in {**mixed, **written}.items():
        heads = np.isfinite(track.now).sum(axis=1, keepdims=True)
        size = heads if place in written else 1
        now, first = size * track.now, size * track.first
        where = (now < limits["level"]) & (now * limits["fall"] < first)
        if not where.any():
            continue
        lowest = float(now[where].min())
        many = (where.sum(axis=1) > limits["most"] * heads[:, 0]).any()  # most heads of some block
        what = f"Output of heads fell to {number(lowest)} of the mean of their block"
        yield Firing(track.stack, track.site, where, lowest, limits["level"], what, "warning" if many else "note")
