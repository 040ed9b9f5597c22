"""Heads become sinks on the first token. Every good language model learns such heads (arXiv:2410.10781), so this alarm
is only a note.

The rule fires for heads that passed `level` in this run.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.watch.rule import Firing, History, Limits, rule
from attnscope.core.words import count, percent


@rule(
    severity="note",
    reads=("sink_mass",),
    summary="Heads put much of their attention on the first token, but did not when the run began.",
    citation="arXiv:2410.10781",
    advice="Normal in language models; gates or learned sinks avoid it.",
    thresholds={"level": 0.3, "rise": 0.15},
)
def sinks_forming(history: History, limits: Limits) -> Iterator[Firing]:
    for track in history.tracks("sink_mass"):
        where = (track.now > limits["level"]) & (track.now - track.first > limits["rise"])
        if not where.any():
            continue
        strongest = float(track.now[where].max())
        what = f"{count(int(where.sum()), 'head')} put up to {percent(strongest)} of attention on the first token"
        yield Firing(track.stack, track.site, where, strongest, limits["level"], what)
