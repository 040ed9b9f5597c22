"""The optimiser has lost its state: its own step count is lower than at an earlier look.

Adam without its moments takes steps of full size in every direction, as at the start, but without a warm-up
(arXiv:1412.6980). The usual cause is a run that is resumed without the optimiser. Optimisers that count no steps, such
as SGD, are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import NOWHERE, Firing, History, Limits, rule


@rule(
    severity="warning",
    reads=(),
    summary="The step count of the optimiser fell: its moments are lost.",
    citation="arXiv:1412.6980",
    advice="Restore the optimiser's state from the checkpoint, or warm up again.",
    thresholds={"steps": 0.0, "window": 100.0},
)
def optimizer_reset(history: History, limits: Limits) -> Iterator[Firing]:
    steps, counts = history.training("optimizer_steps")
    recent = steps >= (steps[-1] if len(steps) else 0) - limits["window"]
    falls = np.flatnonzero((np.diff(counts) < 0) & recent[1:])
    if len(falls):
        last = int(falls[-1])
        lost = float(counts[last] - counts[last + 1])
        what = f"The optimiser's step count fell from {counts[last]:,.0f} to {counts[last + 1]:,.0f}"
        yield Firing("", "", NOWHERE, lost, limits["steps"], what)
