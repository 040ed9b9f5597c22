"""NaN or infinity in the loss, a gradient, or the output of a block. Nothing after that place can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attnscope.commands.watch.look import AlarmSeverity
from attnscope.commands.watch.rule import NOWHERE, Firing, History, Limits, rule

_TRAINING = ("gradient_norm",)


@rule(
    severity="critical",
    reads=(),
    summary="NaN or infinity, with its origin.",
    citation="IEEE 754",
    advice=(
        "Go back to the last checkpoint and lower the learning rate; in float16 check the measure `spike`, or use "
        "bfloat16. A gradient scaler skips steps with infinite gradients by itself."
    ),
    thresholds={"allowed": 0.0},
)
def nonfinite(history: History, limits: Limits) -> Iterator[Firing]:
    lost = history.lost(history.looks[-1])
    broken_loss = history.loss is not None and not math.isfinite(history.loss)
    if not lost and not broken_loss and history.origin is None:
        return
    forward = [pair for pair in lost if pair[0].measure not in _TRAINING]
    which, where = (forward or lost)[0] if lost else (None, NOWHERE)
    what = "NaN or infinity" + (f" ({history.origin})" if history.origin else "" if lost else " in the loss")
    place = ("", "") if which is None else (which.stack, which.site)
    only_gradient = bool(lost) and not forward and not broken_loss
    severity: AlarmSeverity = "warning" if only_gradient else "critical"
    yield Firing(*place, where, float(max(where.sum(), 1)), limits["allowed"], what, severity)
