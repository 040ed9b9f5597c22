"""Drained sinks: the sink of a head has a small value, so that attention to it writes almost nothing.

An idle head cannot attend to nothing, so it attends to a key with a small value (arXiv:2410.13835). Reports heads in
which one key receives as much attention as a sink (the threshold of `sink_elsewhere`) and has a value far below the
head's mean.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import grid_at, grids, raised, uniform_attention
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import percent


@finding(
    order=65,
    reads=("value_drain", "most_received"),
    summary="Heads that rest on a key whose value is small.",
    citation="arXiv:2410.13835",
    neutral=True,
)
def drained_sinks(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "value_drain"):
        mass = grid_at(survey, "most_received", grid.stack, grid.site)
        if mass is None:
            continue
        sinks = mass.means > raised(thresholds.sink_mass, uniform_attention(survey, grid.stack, grid.site))
        mask = sinks & (grid.means < thresholds.value_drain)
        found = grid.chosen(mask)
        if not found:
            continue
        least = min(found, key=lambda place: (grid.means[place], place))
        yield Finding(
            kind=drained_sinks.name,
            severity="note",
            stack=grid.stack,
            layers=tuple(sorted({layer for layer, _ in found})),
            heads=found,
            sentence=(
                f"{len(found):,} of {int(sinks.sum()):,} heads{grid.tail} that rest on one key rest on a small value:"
                f" its norm is below {percent(thresholds.value_drain)} of the mean of the head, least in head"
                f" {least[1]} of block {least[0]}: {percent(grid.means[least])}."
            ),
            value=float(grid.means[least]),
            threshold=thresholds.value_drain,
            threshold_name="value_drain",
            citation=drained_sinks.citation,
            advice=(
                "Attention that falls there writes next to nothing, so these heads are idle most of the time. Keep that"
                " token in a cache: without it the same heads would write something. Gates let a head be idle without"
                " a sink."
            ),
            details={"measure": "value_drain", "site": grid.site},
        )
