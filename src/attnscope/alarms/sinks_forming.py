"""Heads that become sinks on the first token. Every good language model learns it (arXiv:2410.10781), so it is a note.

Rings for heads that passed `level` in this run.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.watch.rule import History, Limits, Ringing, rule
from attnscope.core.words import count, percent


@rule(
    severity="note",
    reads=("sink_mass",),
    summary="Heads put much of their attention on the first token, which they did not when the run began.",
    citation="arXiv:2410.10781",
    advice="Normal in language models; gates or learned sinks keep heads at work where it is not wanted.",
    thresholds={"level": 0.3, "rise": 0.15},
)
def sinks_forming(history: History, limits: Limits) -> Iterator[Ringing]:
    for track in history.tracks("sink_mass"):
        where = (track.now > limits["level"]) & (track.now - track.first > limits["rise"])
        if not where.any():
            continue
        strongest = float(track.now[where].max())
        what = f"{count(int(where.sum()), 'head')} put up to {percent(strongest)} of attention on the first token"
        yield Ringing(track.stack, track.site, where, strongest, limits["level"], what)
