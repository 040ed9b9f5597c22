"""Dormant heads: their output is small compared with the other heads of their block.

Among thirteen scores for removable heads, the ones based on the norm of a head's output worked across model families,
and found heads that the mass on the first token misses (arXiv:2504.03889).
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import percent


@finding(
    order=95,
    reads=("inactive_heads",),
    summary="Heads whose output is small relative to the other heads of their block.",
    citation="arXiv:2504.03889",
    severity="note: such heads do no harm, and can often be pruned",
)
def dormant_heads(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "inactive_heads"):
        dormant = grid.chosen(grid.means < thresholds.inactive_heads)
        if not dormant:
            continue
        least = min(dormant, key=lambda head: (grid.means[head], head))
        yield Finding(
            kind=dormant_heads.name,
            severity="note",
            stack=grid.stack,
            layers=tuple(sorted({layer for layer, _ in dormant})),
            heads=dormant,
            sentence=(
                f"In {grid.portion(dormant)} the output is below {percent(thresholds.inactive_heads)} of the mean over "
                f"the heads of their block; lowest in head {least[1]} of block {least[0]}: "
                f"{percent(grid.means[least])}."
            ),
            value=float(grid.means[least]),
            threshold=thresholds.inactive_heads,
            threshold_name="inactive_heads",
            citation=dormant_heads.citation,
            advice=(
                "Such heads can often be removed at little loss on texts like these (`attnscope treat --remedy prune` "
                "measures it). They may be active on other texts, so scan more than one corpus first."
            ),
            details={"measure": "inactive_heads", "site": grid.site},
        )
