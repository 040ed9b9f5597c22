"""The same sequences come again and again, and did not before: a data loader that is stuck or was seeded anew.

`repeated` is the share of sequences since the last look that were also in one of the eight forwards before them. The
rule compares it with at least `looks` earlier looks, so a data set of a few batches is quiet.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import NOWHERE, Firing, History, Limits, rule
from attnscope.core.words import percent


@rule(
    severity="warning",
    reads=(),
    summary="Sequences repeat within a few steps, and did not before.",
    citation="this software",
    advice="Check the data loader, its sampler and its seed.",
    thresholds={"level": 0.4, "before": 0.1, "looks": 4.0},
)
def repeated_data(history: History, limits: Limits) -> Iterator[Firing]:
    _, shares = history.training("repeated")
    if len(shares) <= limits["looks"] or not shares[-1] > limits["level"]:
        return
    if np.quantile(shares[:-1], 0.1) < limits["before"]:  # stays low while the fault lasts
        share = float(shares[-1])
        what = f"{percent(share)} of the sequences repeat ones of the last few batches"
        yield Firing("", "", NOWHERE, share, limits["level"], what)
