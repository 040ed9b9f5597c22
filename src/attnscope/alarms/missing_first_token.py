"""Sequences no longer begin with the token with which they began: a BOS or CLS token is missing.

Models put much attention on the first token (arXiv:2309.17453) and compute differently without it. The rule fires if
fewer than `level` of the sequences since the last look begin with it, and at least `before` did at earlier looks,
of which `looks` are needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import NOWHERE, Firing, History, Limits, rule
from attnscope.core.words import percent


@rule(
    severity="warning",
    reads=(),
    summary="Sequences no longer begin with their usual first token.",
    citation="arXiv:2309.17453",
    advice="Check whether the tokenizer still adds special tokens, and how documents are packed.",
    thresholds={"level": 0.8, "before": 0.95, "looks": 4.0},
)
def missing_first_token(history: History, limits: Limits) -> Iterator[Firing]:
    _, shares = history.training("usual_first_token")
    if len(shares) <= limits["looks"] or not shares[-1] < limits["level"]:
        return
    usual = float(np.quantile(shares[:-1], 0.9))  # stays high while the fault lasts
    if usual >= limits["before"]:
        share = float(shares[-1])
        what = f"{percent(share)} of the sequences begin with the usual first token, {percent(usual)} did before"
        yield Firing("", "", NOWHERE, share, limits["level"], what)
