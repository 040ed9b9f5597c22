"""The loss leaves its band upwards: the mean since the last look is far above the looks before.

The band is the median of the last `looks` means, plus `width` robust standard deviations (1.4826 times the median
distance from the median), but at least `least` of the median. A loss that falls is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import NOWHERE, Firing, History, Limits, rule
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=(),
    summary="The loss leaves the band of the looks before.",
    citation="arXiv:2309.14322",
    advice="Check what changed: the data, the labels, the learning rate. New data alone can do this too.",
    thresholds={"looks": 10.0, "width": 8.0, "least": 0.1},
)
def loss_jump(history: History, limits: Limits) -> Iterator[Firing]:
    _, losses = history.training("mean_loss")
    looks = int(limits["looks"])
    if len(losses) <= looks:
        return
    before = losses[-looks - 1 : -1]
    middle = float(np.median(before))
    spread = 1.4826 * float(np.median(np.abs(before - middle)))
    top = middle + max(limits["width"] * spread, limits["least"] * abs(middle))
    if losses[-1] > top:
        what = f"The mean loss since the last look is {number(float(losses[-1]))}, {number(middle)} was usual"
        yield Firing("", "", NOWHERE, float(losses[-1]), top, what)
