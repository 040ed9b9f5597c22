"""Logits grow: softmax becomes one-hot, its gradient vanishes, and the loss diverges (arXiv:2309.14322).

The rule fires above `level` if the value is also `rise` times the head's first value, because a model may work with
large logits from the start, and logits vary between batches. It also fires above `floor` if the largest logit of a head
grew `growth` times within a window, where values below 1 count as 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Firing, History, Limits, forecast, rule
from attnscope.core.words import count, number


@rule(
    severity="warning",
    reads=("max_logit",),
    summary="The largest logit of a head is too large, or grows fast.",
    citation="arXiv:2507.20534, arXiv:2309.14322",
    advice="Lower the learning rate, normalise queries and keys, or let the watch limit logits: qk_clip=100.",
    thresholds={"level": 100.0, "rise": 1.5, "floor": 30.0, "growth": 2.0, "window": 100.0},
)
def max_logit_growth(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("max_logit"):
        now, (before, steps) = track.now, track.before(limits["window"]) or (track.now, 0)
        high = (now > limits["level"]) & (now > limits["rise"] * track.first)
        fast = (now > limits["floor"]) & (now > limits["growth"] * np.maximum(before, 1.0)) & (steps > 0)
        where = high | fast
        if not where.any():
            continue
        worst = float(now[where].max())
        if high.any():
            yield Firing(track.stack, track.site, where, worst, limits["level"], f"Logits reach {number(worst)}")
        else:
            then = float(before[where][now[where].argmax()])  # the growth of that head
            ratio = worst / (then if then > 0 else 1.0)
            grew = f"grew {number(ratio)} times" if then > 0 else f"grew from {number(then)}"
            what = f"Logits {grew} within {count(steps, 'step')}, to {number(worst)},"
            soon = forecast(worst, ratio if then > 0 else 0.0, steps, limits["level"], history.step)
            yield Firing(track.stack, track.site, where, ratio, limits["growth"], what, forecast=soon)
