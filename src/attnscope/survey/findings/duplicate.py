"""Duplicate heads: two heads of a layer that draw the same pattern. One of them can often go."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.core.finding import Finding
from attnscope.survey.grid import Grid, grids
from attnscope.survey.survey import Survey
from attnscope.survey.thresholds import Thresholds
from attnscope.survey.words import number


def duplicate(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "head_overlap"):
        mask = grid.means > thresholds.duplicate_overlap
        found = grid.chosen(mask)
        if not found:
            continue
        best = grid.strongest(mask)[0]
        twin = _twin(grid, best)
        share = len(found) / grid.measured
        depths = sorted({layer for layer, _ in found})
        pair = f"heads {best[1]} and {twin}" if twin is not None else f"head {best[1]}"
        yield Finding(
            kind="duplicate_heads",
            severity="warning" if share > thresholds.most_heads else "info",
            stack=grid.stack,
            layers=tuple(depths),
            heads=found,
            sentence=(
                f"In {grid.portion(found)} the pattern is nearly that of another head in the layer; most"
                f" alike: {pair} of layer {best[0]}"
                f" (overlap {number(grid.means[best])})."
            ),
            value=float(grid.means[best]),
            threshold=thresholds.duplicate_overlap,
            threshold_name="duplicate_overlap",
            citation="arXiv:1905.10650",
            advice=(
                "Equal patterns are redundant only if what the heads write is alike too. Where both rest on"
                " the first"
                " token or both average everything, see those findings first; otherwise try pruning one of"
                " each pair."
            ),
            details={
                "site": grid.site,
                "share_of_heads": share,
                "pairs": [
                    [layer, head, _twin(grid, (layer, head))] for layer, head in grid.strongest(mask)[:20]
                ],
            },
        )


def _twin(grid: Grid, place: tuple[int, int]) -> int | None:
    layer, head = place
    labels = grid.cells[layer].usual()[head]
    return labels.get("other") if labels else None
