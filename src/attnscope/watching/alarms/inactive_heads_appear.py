"""Heads that stop giving anything: their output is far smaller than that of the layer's other heads
(arXiv:2504.03889), and was not when the run began."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.core.words import number
from attnscope.watching.history import History
from attnscope.watching.rule import Limits, Ringing, rule


@rule(
    severity="warning",
    reads=("inactive_heads",),
    summary="Heads give next to nothing beside the others of their layer.",
    citation="arXiv:2504.03889",
    advice="A head or two can be left out; where they are many, lower the learning rate or weight decay.",
    thresholds={"level": 0.02, "fall": 4.0, "most": 0.5},
)
def inactive_heads_appear(history: History, limits: Limits) -> Iterator[Ringing]:
    for track in history.tracks("inactive_heads"):
        where = (track.now < limits["level"]) & (track.now * limits["fall"] < track.first)
        if not where.any():
            continue
        lowest = float(track.now[where].min())
        many = where.sum() > limits["most"] * np.isfinite(track.now).sum()
        what = f"Heads give {number(lowest)} of what others give"
        yield Ringing(track.stack, track.site, where, lowest, limits["level"], what, "warning" if many else "info")
