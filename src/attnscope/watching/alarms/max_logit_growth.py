"""Logits that grow: softmax becomes one-hot, its gradient vanishes, and the loss follows (arXiv:2309.14322).

Rings above `level`, or above `floor` where the largest logit of a head grew by `growth` times within a window.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.core.words import number
from attnscope.watching.history import History
from attnscope.watching.rule import Limits, Ringing, rule


@rule(
    severity="warning",
    reads=("max_logit",),
    summary="The largest logit of a head is above what is safe, or grows fast.",
    citation="arXiv:2507.20534, arXiv:2309.14322",
    advice="Lower the learning rate, norm queries and keys, or let the watch hold logits down: qk_clip=100.",
    thresholds={"level": 100.0, "floor": 30.0, "growth": 2.0, "window": 100.0},
)
def max_logit_growth(history: History, limits: Limits) -> Iterator[Ringing]:
    for track in history.tracks("max_logit"):
        now, before = track.now, track.before(limits["window"])
        risen = now > track.first  # a model that came with large logits has lived with them
        high = (now > limits["level"]) & risen
        fast = np.zeros_like(high)
        if before is not None:
            fast = (now > limits["floor"]) & (now > limits["growth"] * np.maximum(before, 1.0))
        where = high | fast
        if not where.any():
            continue
        worst = float(now[where].max())
        if high.any():
            yield Ringing(track.stack, track.site, where, worst, limits["level"], f"Logits reach {number(worst)}")
        else:
            assert before is not None
            ratio = float((now / np.maximum(before, 1.0))[where].max())
            what = f"Logits grew {number(ratio)} times within {limits['window']:.0f} steps, to {number(worst)},"
            yield Ringing(track.stack, track.site, where, ratio, limits["growth"], what)
