"""The learning rate is far above everything that this run has used.

A warm-up exceeds earlier rates too, but it rises from look to look, and the rule needs `flat` looks without a rise
before. A warm restart (arXiv:1608.03983) returns to a rate that was used before, and is quiet.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import NOWHERE, Firing, History, Limits, rule
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=(),
    summary="The learning rate jumps above all earlier rates.",
    citation="this software",
    advice="Check the schedule, and whether a resumed run restored its scheduler.",
    thresholds={"factor": 1.2, "flat": 3.0},
)
def learning_rate_jump(history: History, limits: Limits) -> Iterator[Firing]:
    _, rates = history.training("learning_rate")
    flat = int(limits["flat"])
    # The jump may be some looks ago: the rule holds while the rate stays above all rates from before it.
    for jump in range(flat + 1, len(rates)):
        earlier, before = rates[:jump], rates[jump - flat - 1 : jump]
        top = float(earlier.max())
        if rates[jump:].min() > limits["factor"] * top and (np.diff(before) <= 0).all():
            factor = float(rates[-1]) / top
            what = f"The learning rate is {number(float(rates[-1]))}, {number(factor)} times the largest before"
            yield Firing("", "", NOWHERE, factor, limits["factor"], what)
            return
