"""Sink heads: much of the attention goes to the first token, whatever the text.

Comparing the mean mass on the first token with 0.3 is the sink metric of Gu et al. (2024, arXiv:2410.10781). Trained
language models have many such heads and need them: an idle head attends there. On short sequences the threshold is
raised to twice the mass that uniform attention gives, because a uniform head would pass it.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import aside, grids, raised, uniform_attention
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import percent


@finding(
    order=60,
    reads=("sink_mass",),
    summary="Heads in which much of the attention goes to the first token.",
    citation="arXiv:2410.10781, arXiv:2603.05498",
    severity=(
        "to_know if most heads sink, because it matters when the model is quantised or its cache is cut; else note"
    ),
)
def sink(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "sink_mass"):
        uniform = uniform_attention(survey, grid.stack, grid.site)
        bar = raised(thresholds.sink_mass, uniform)
        mask = grid.means > bar
        sinks = grid.chosen(mask)
        if not sinks:
            continue
        strongest = grid.strongest(mask)[0]
        share = len(sinks) / grid.measured
        depths = sorted({layer for layer, _ in sinks})
        yield Finding(
            kind=sink.name,
            severity="to_know" if share > thresholds.most_heads else "note",
            stack=grid.stack,
            layers=tuple(depths),
            heads=sinks,
            sentence=(
                f"In {grid.portion(sinks)} more than {percent(bar)} of attention goes to the first token; most in"
                f" head {strongest[1]} of block {strongest[0]}: {percent(grid.means[strongest])}."
                f"{aside(thresholds.sink_mass, uniform)}"
            ),
            value=float(grid.means[strongest]),
            threshold=bar,
            threshold_name="sink_mass",
            citation=sink.citation,
            advice=(
                "Normal in trained models. Never evict the first token from a cache, and keep it in high precision "
                "when quantising. Attention gates or learned sinks remove the need for such heads."
            ),
            details={
                "measure": "sink_mass",
                "site": grid.site,
                "share_of_heads": share,
                **grid.peak(strongest),
                "token": 0,
                "mean": float(grid.means[mask].mean()),
            },
        )
