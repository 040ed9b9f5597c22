"""Attention becomes one-hot: most heads of a block lose their entropy (arXiv:2303.06296).

Heads sharpen in every good run, and some heads of a trained model stay sharp. The rule fires if most heads of a block
are below `level` nats and were above `begun` when the run began, or if the mean entropy of a block fell by the share
`fall` of its maximum within a window, and the maximum was above `begun`. Entropies below `begun` vary by such shares
from batch to batch in healthy runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.look import AlarmSeverity
from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import count, number, percent


@rule(
    severity="warning",
    reads=("entropy",),
    summary="Most heads of a block become one-hot, or its entropy falls fast.",
    citation="arXiv:2303.06296",
    advice="Lower the learning rate, normalise queries and keys, or reparametrise their weights (sigma-reparam).",
    thresholds={"level": 0.1, "begun": 0.5, "most": 0.5, "fall": 0.5, "window": 100.0},
)
def entropy_collapse(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("entropy"):
        low = (track.now < limits["level"]) & (track.first >= limits["begun"])
        known = np.isfinite(track.now).sum(axis=1)
        collapsed = low.sum(axis=1) > limits["most"] * np.maximum(known, 1)
        recent, steps = track.within(limits["window"])
        means = np.array([_means(table) for table in recent])
        highest = np.fmax.reduce(means, axis=0)
        fallen = (means[-1] < (1 - limits["fall"]) * highest) & (highest >= limits["begun"])
        if collapsed.any():
            where = low & collapsed[:, None]
            lowest = float(track.now[where].min())
            severity: AlarmSeverity = (
                "critical" if collapsed.sum() > limits["most"] * int((known > 0).sum()) else "warning"
            )
            what = f"Entropy collapses to {number(lowest)} nats"
            yield Firing(track.stack, track.site, where, lowest, limits["level"], what, severity)
        elif fallen.any():
            share = float((1 - means[-1] / highest)[fallen].max())
            what = f"Entropy fell by {percent(share)} within {count(steps, 'step')}"
            yield Firing(track.stack, track.site, fallen, share, limits["fall"], what)


def _means(table: np.ndarray) -> np.ndarray:
    """Return the mean over the heads of every block; NaN for a block without heads."""
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)
