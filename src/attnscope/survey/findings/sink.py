"""Sink heads: much of the attention goes to the first token whatever the text says.

The mean mass on the first token against 0.3 is the sink metric of Gu et al. (2024, arXiv:2410.10781). Trained
language models have many such heads and need them: a head that has nothing to say rests there.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.core.finding import Finding
from attnscope.survey.grid import grids
from attnscope.survey.survey import Survey
from attnscope.survey.thresholds import Thresholds
from attnscope.survey.words import percent


def sink(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "sink_mass"):
        mask = grid.means > thresholds.sink_mass
        found = grid.chosen(mask)
        if not found:
            continue
        strongest = grid.strongest(mask)[0]
        share = len(found) / grid.measured
        depths = sorted({layer for layer, _ in found})
        yield Finding(
            kind="sink",
            severity="warning" if share > thresholds.most_heads else "info",
            stack=grid.stack,
            layers=tuple(depths),
            heads=found,
            sentence=(
                f"In {grid.portion(found)} more than {percent(thresholds.sink_mass)} of attention goes to the"
                f" first token; most in head {strongest[1]} of layer {strongest[0]}:"
                f" {percent(grid.means[strongest])}."
            ),
            value=float(grid.means[strongest]),
            threshold=thresholds.sink_mass,
            threshold_name="sink_mass",
            citation="arXiv:2410.10781, arXiv:2603.05498",
            advice=(
                "Normal in trained models, and useful to know: never evict the first token from a cache,"
                " keep it in"
                " high precision when quantising, and look to attention gates or learned sinks if heads"
                " should work"
                " instead of rest."
            ),
            details={
                "site": grid.site,
                "share_of_heads": share,
                "mean": float(grid.means[mask].mean()),
            },
        )
