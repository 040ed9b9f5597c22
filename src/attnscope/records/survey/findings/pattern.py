"""Heads with a fixed pattern: each token to itself, or to the one before it. Useful parts, and cheap to replace."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.core.finding import Finding
from attnscope.core.words import heads, percent
from attnscope.records.survey.baseline import aside, raised, uniform_attention
from attnscope.records.survey.grid import grids
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds


def identity(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    yield from _fixed(
        survey,
        measure="self_attention",
        kind="identity_heads",
        bound=("identity_mass", thresholds.identity_mass),
        habit="tokens mostly attend to themselves",
        citation="arXiv:2402.02098",
        advice=(
            "Such a head moves nothing between tokens: its value and output projections act like a small MLP."
            " A candidate for pruning."
        ),
    )


def previous_token(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    yield from _fixed(
        survey,
        measure="previous_token",
        kind="previous_token_heads",
        bound=("previous_mass", thresholds.previous_mass),
        habit="tokens mostly attend to the one before",
        citation="arXiv:2409.10559",
        advice=("The first half of an induction circuit: keep it when pruning, and expect copying to fail without it."),
    )


def _fixed(
    survey: Survey,
    *,
    measure: str,
    kind: str,
    bound: tuple[str, float],
    habit: str,
    citation: str,
    advice: str,
) -> Iterator[Finding]:
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
            kind=kind,
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
            citation=citation,
            advice=advice,
            details={"measure": measure, "site": grid.site},
        )
