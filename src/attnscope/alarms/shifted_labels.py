"""Labels stand at another place than before: one position earlier or later relative to the input tokens.

Language models of transformers shift labels themselves, so labels equal their own input token; a loop that shifts them
too trains on the token after the next. In masked language models only the tokens that are shown unchanged agree, one
label in ten. The rule needs an earlier agreement of `least`, and fires if a neighbour agrees more than the usual place,
by `margin` of that agreement.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.watch.rule import NOWHERE, Firing, History, Limits, rule
from attnscope.core.words import percent

PLACES = {"labels_before": "one place before", "labels_same": "at the same place", "labels_after": "one place after"}


@rule(
    severity="critical",
    reads=(),
    summary="Labels moved by one place relative to the input tokens.",
    citation="this software",
    advice="Pass unshifted labels to a model that shifts them itself, or shift them once in your own loss.",
    thresholds={"margin": 0.5, "least": 0.05, "looks": 2.0},
)
def shifted_labels(history: History, limits: Limits) -> Iterator[Firing]:
    tracks = [history.training(name)[1] for name in PLACES]
    looks = int(limits["looks"])
    if min(len(track) for track in tracks) <= looks:
        return
    table = np.stack(tracks)  # [places, looks]
    usual = int(np.median(table[:, :-looks], axis=1).argmax())
    agreed = float(np.median(table[usual, :-looks]))
    now = table[:, -looks:].mean(axis=1)
    best = int(now.argmax())
    if best != usual and agreed >= limits["least"] and now[best] - now[usual] > limits["margin"] * agreed:
        words = list(PLACES.values())
        margin = float((now[best] - now[usual]) / agreed)
        what = f"{percent(float(now[best]))} of the labels equal the token {words[best]}; {words[usual]} was usual"
        yield Firing("", "", NOWHERE, margin, limits["margin"], what)
