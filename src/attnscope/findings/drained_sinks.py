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
    summary="Heads whose sink is a key with a small value.",
    citation="arXiv:2410.13835",
    severity="note: this is how heads of trained models rest",
    neutral=True,
)
def drained_sinks(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "value_drain"):
        mass = grid_at(survey, "most_received", grid.stack, grid.site)
        if mass is None:
            continue
        sinks = mass.means > raised(thresholds.sink_mass, uniform_attention(survey, grid.stack, grid.site))
        mask = sinks & (grid.means < thresholds.value_drain)
        drained = grid.chosen(mask)
        if not drained:
            continue
        least = min(drained, key=lambda head: (grid.means[head], head))
        yield Finding(
            kind=drained_sinks.name,
            severity="note",
            stack=grid.stack,
            layers=tuple(sorted({layer for layer, _ in drained})),
            heads=drained,
            sentence=(
                f"{len(drained):,} of {int(sinks.sum()):,} heads{grid.tail} with a sink have one with a small value: "
                f"its norm is below {percent(thresholds.value_drain)} of the head's mean, lowest in head"
                f" {least[1]} of block {least[0]}: {percent(grid.means[least])}."
            ),
            value=float(grid.means[least]),
            threshold=thresholds.value_drain,
            threshold_name="value_drain",
            citation=drained_sinks.citation,
            advice=(
                "Attention to such a key writes almost nothing, so these heads are idle most of the time. Never evict "
                "that token from a cache: without it these heads would write something. With gates, heads can be idle "
                "without a sink."
            ),
            details={"measure": "value_drain", "site": grid.site},
        )
