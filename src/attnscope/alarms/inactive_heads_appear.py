"""Heads that stop giving anything: what they give is far smaller than the mean of their layer's heads
(arXiv:2504.03889), and was not when the run began.

What a head gives is what it writes into the stream where its part of the output projection is known:
`head_contribution` is its share in what the layer writes, and a share times the number of heads stands beside the mean
as `inactive_heads` does, which knows what heads give before the projection and is read where there is no other. A layer
whose heads fade all together keeps its shares until they are zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import History, Limits, Ringing, rule
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=("head_contribution", "inactive_heads"),
    summary="Heads give next to nothing beside the others of their layer.",
    citation="arXiv:2504.03889",
    advice="A head or two can be left out; where they are many, lower the learning rate or weight decay.",
    thresholds={"level": 0.02, "fall": 4.0, "most": 0.5},
)
def inactive_heads_appear(history: History, limits: Limits) -> Iterator[Ringing]:
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
        many = (where.sum(axis=1) > limits["most"] * heads[:, 0]).any()  # of some layer: it no longer attends
        what = f"Heads give {number(lowest)} of the mean of their layer"
        yield Ringing(track.stack, track.site, where, lowest, limits["level"], what, "warning" if many else "note")
