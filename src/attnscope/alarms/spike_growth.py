"""A growing spike in the residual stream. Massive activations form in good runs too, but slowly and to a size that the
number format holds (arXiv:2402.17762). float16 ends at 65,504.

Rings if the largest entry grew so fast within a window that another such window ends above `end`, or if it is above
`floor` and grew `growth` times within a window.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import History, Limits, Ringing, rule
from attnscope.core.words import count, number


@rule(
    severity="warning",
    reads=("spike",),
    summary="The largest entry of the residual stream grows fast, or towards the end of float16.",
    citation="arXiv:2402.17762, arXiv:2603.05498",
    advice="Train in bfloat16, lower the learning rate, or norm what attention and MLP write (sandwich norm).",
    thresholds={"floor": 100.0, "growth": 3.0, "end": 65504.0, "window": 100.0},
)
def spike_growth(history: History, limits: Limits) -> Iterator[Ringing]:
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
        worst = float(now[where].max())
        grew = f"The largest activation grew {number(float(ratio[where][now[where].argmax()]))} times"  # in one layer
        what = f"{grew} within {count(steps, 'step')}, to {number(worst)},"
        if soon.any():
            yield Ringing(track.stack, track.site, where, worst, limits["end"], what, "critical")
        else:
            yield Ringing(track.stack, track.site, where, float(ratio[where].max()), limits["growth"], what)
