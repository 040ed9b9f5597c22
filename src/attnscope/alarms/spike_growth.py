"""A spike in the residual stream grows. Massive activations form in good runs too, but slowly and to a size that the
number format can hold (arXiv:2402.17762). The largest float16 number is 65,504. The rule fires if the largest entry
would exceed `end` after another window of the same growth, or if it is above `floor` and grew `growth` times within a
window.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Firing, History, Limits, forecast, rule
from attnscope.core.words import count, number


@rule(
    severity="warning",
    reads=("spike",),
    summary="The largest entry of the residual stream grows fast, or approaches the limit of float16.",
    citation="arXiv:2402.17762, arXiv:2603.05498",
    advice="Train in bfloat16, lower the learning rate, or normalise the outputs of attention and MLP (sandwich norm).",
    thresholds={"floor": 100.0, "growth": 3.0, "end": 65504.0, "window": 100.0},
)
def spike_growth(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("spike"):
        past = track.before(limits["window"])
        if past is None or track.site != "stream":
            continue
        now, (before, steps) = track.now, past
        ratio = now / np.maximum(before, np.finfo(np.float64).tiny)
        soon = (now > limits["floor"]) & (ratio > 1) & (now * ratio > limits["end"])
        fast = (now > limits["floor"]) & (ratio > limits["growth"])
        where = soon | fast
        if not where.any():
            continue
        worst, rate = float(now[where].max()), float(ratio[where][now[where].argmax()])
        what = f"The largest activation grew {number(rate)} times within {count(steps, 'step')}, to {number(worst)},"
        if soon.any():
            end = float((now * ratio)[soon].max())  # after another window of the same growth
            next_step = forecast(worst, rate, steps, limits["end"], history.step)
            yield Firing(track.stack, track.site, where, end, limits["end"], what, "critical", next_step)
        else:
            yield Firing(track.stack, track.site, where, float(ratio[where].max()), limits["growth"], what)
