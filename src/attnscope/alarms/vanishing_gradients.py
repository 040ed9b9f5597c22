"""Queries and keys stop learning: the gradients of W_Q and W_K vanish relative to the gradient of W_V
(arXiv:2206.03126).

This happens if tokens are alike, or if softmax is one-hot or flat. The rule fires if the ratio is below `level`, and
`fall` times smaller than when the run began, at two looks in a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import number


@rule(
    severity="warning",
    reads=("gradient_norm",),
    summary="The gradients of queries and keys vanish relative to that of values.",
    citation="arXiv:2206.03126",
    advice="Check entropy and the relative residual of these blocks for one-hot rows or tokens that are alike.",
    thresholds={"level": 1e-3, "fall": 10.0},
)
def vanishing_gradients(history: History, limits: Limits) -> Iterator[Firing]:
    sides = [
        {(t.stack, t.site): t for t in history.tracks("gradient_norm", part)} for part in ("query", "key", "value")
    ]
    for place in sides[2]:
        query, key, value = (side.get(place) for side in sides)
        if query is None or key is None or value is None or len(value.steps) < 2:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (query.values + key.values) / value.values
            begun = (query.first + key.first) / value.first
        where = (ratio[-1] < limits["level"]) & (ratio[-2] < limits["level"]) & (ratio[-1] * limits["fall"] < begun)
        if where.any():
            lowest = float(ratio[-1][where].min())
            what = f"Gradients of queries and keys are {number(lowest)} of that of values"
            yield Firing(*place, where, lowest, limits["level"], what)
