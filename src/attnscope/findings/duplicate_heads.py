"""Duplicate heads: two heads of a block with the same pattern. One of them can often be removed."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import Grid, grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number


@finding(
    order=90,
    reads=("head_overlap",),
    summary="Heads of one block with the same pattern.",
    citation="arXiv:1905.10650",
    severity="to_know if most heads have a twin, because they can be pruned, else note",
)
def duplicate_heads(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "head_overlap"):
        mask = grid.means > thresholds.duplicate_overlap
        duplicates = grid.chosen(mask)
        if not duplicates:
            continue
        best = grid.strongest(mask)[0]
        pairs = list(dict.fromkeys(_pair(grid, head) for head in grid.strongest(mask)))
        layer, *alike = pairs[0]
        share = len(duplicates) / grid.measured
        depths = sorted({layer for layer, _ in duplicates})
        named = f"head{'s' if len(alike) > 1 else ''} {' and '.join(map(str, alike))}"
        yield Finding(
            kind=duplicate_heads.name,
            severity="to_know" if share > thresholds.most_heads else "note",
            stack=grid.stack,
            layers=tuple(depths),
            heads=duplicates,
            sentence=(
                f"In {grid.portion(duplicates)} the pattern is nearly that of another head in the block; most alike:"
                f" {named} of block {layer} (overlap {number(grid.means[best])})."
            ),
            value=float(grid.means[best]),
            threshold=thresholds.duplicate_overlap,
            threshold_name="duplicate_overlap",
            citation=duplicate_heads.citation,
            advice=(
                "Heads with equal patterns are redundant only if they also write alike. If both attend to the first "
                "token or both average everything, see those findings first; otherwise try pruning one of each pair."
            ),
            details={
                "measure": "head_overlap",
                "site": grid.site,
                "share_of_heads": share,
                "pairs": [list(pair) for pair in pairs[:20]],
            },
        )


def _pair(grid: Grid, place: tuple[int, int]) -> tuple[int, ...]:
    """Return the block, the head and its most similar head, in ascending order; without the latter if it is unknown."""
    layer, head = place
    twin = (grid.cells[layer].usual()[head] or {}).get("other")
    return (layer, head) if twin is None else (layer, *sorted((head, twin)))
