"""Heads with a fixed pattern: what findings on such heads share. Useful parts, and cheap to replace."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.core.finding import Finding, FindingKind
from attnscope.core.words import heads, percent
from attnscope.records.survey.baseline import aside, raised, uniform_attention
from attnscope.records.survey.grid import grids
from attnscope.records.survey.survey import Survey


def fixed_pattern(
    survey: Survey, kind: FindingKind, *, bound: tuple[str, float], habit: str, advice: str
) -> Iterator[Finding]:
    """Heads in which the first measure that `kind` reads is above a bound: name and value of a threshold."""
    measure = kind.reads[0]
    name, threshold = bound
    for grid in grids(survey, measure):
        if grid.site != "self":  # in cross-attention, equal indices are not the same token
            continue
        uniform = uniform_attention(survey, grid.stack, grid.site)
        bar = raised(threshold, uniform)
        mask = grid.means > bar
        found = grid.chosen(mask)
        if not found:
            continue
        first = grid.strongest(mask)
        depths = sorted({layer for layer, _ in found})
        yield Finding(
            kind=kind.name,
            severity="info",
            stack=grid.stack,
            layers=tuple(depths),
            heads=found,
            sentence=(
                f"In {grid.portion(found)} {habit}: {heads(first)} (up to {percent(grid.means[first[0]])})."
                f"{aside(threshold, uniform)}"
            ),
            value=float(grid.means[first[0]]),
            threshold=bar,
            threshold_name=name,
            citation=kind.citation,
            advice=advice,
            details={"measure": measure, "site": grid.site},
        )
