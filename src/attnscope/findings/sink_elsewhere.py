"""Sinks elsewhere: heads in which one key, usually not the first, takes as much attention as a sink.

Encoders often use a token other than the first (a separator, a full stop, a register). On short sequences the threshold
is raised as for sinks on the first token.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import Grid, aside, grid_at, grids, raised, uniform_attention
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import percent


@finding(
    order=70,
    reads=("most_received", "sink_mass"),
    summary="Heads in which much of the attention goes to one token that is not the first.",
    citation="arXiv:2410.10781",
    severity="note: it describes what heads do",
    neutral=True,
)
def sink_elsewhere(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "most_received"):
        first = grid_at(survey, "sink_mass", grid.stack, grid.site)
        uniform = uniform_attention(survey, grid.stack, grid.site)
        bar = raised(thresholds.sink_mass, uniform)
        mask = grid.means > bar
        if first is not None:
            mask &= ~(first.means > bar)
        usual = {place: _usual_key(grid, place) for place in grid.strongest(mask)}
        sinks = tuple(sorted(place for place, key in usual.items() if key is not None and key[0] != 0))
        if not sinks:
            continue
        strongest = max(sinks, key=lambda place: grid.means[place])
        key, how_often = usual[strongest] or (0, 0.0)
        yield Finding(
            kind=sink_elsewhere.name,
            severity="note",
            stack=grid.stack,
            layers=tuple(sorted({layer for layer, _ in sinks})),
            heads=sinks,
            sentence=(
                f"In {grid.portion(sinks)} one key that is not the first token receives more than {percent(bar)} of all"
                f" attention; most in head {strongest[1]} of block {strongest[0]}: {percent(grid.means[strongest])}"
                f" (key {key} in {percent(how_often)} of sequences).{aside(thresholds.sink_mass, uniform)}"
            ),
            value=float(grid.means[strongest]),
            threshold=bar,
            threshold_name="sink_mass",
            citation=sink_elsewhere.citation,
            advice=(
                "Check which token it is: a separator or a full stop is a sink like the first token; with any other "
                "word, the head is specific to this corpus."
            ),
            details={
                "measure": "most_received",
                "site": grid.site,
                **grid.peak(strongest),
                "keys": sorted({k[0] for k in map(usual.get, sinks) if k}),
            },
        )


def _usual_key(grid: Grid, place: tuple[int, int]) -> tuple[int, float] | None:
    layer, head = place
    tally = grid.cells[layer].tallies.get("key")
    return tally.most_common()[head] if tally else None
