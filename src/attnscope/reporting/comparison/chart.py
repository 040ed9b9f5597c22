"""The picture of a comparison: one measure of all surveys against depth, or the difference of every head.

found.chart()    found.chart("entropy")    found.chart("entropy", heads=True)
"""

from __future__ import annotations

from typing import Any

from attnscope.charts.comparison import comparison_profile, difference_grid
from attnscope.charts.rows import panels
from attnscope.core.errors import RefusalError
from attnscope.records.comparison import Comparison
from attnscope.reporting.comparison.words import labels
from attnscope.reporting.survey.chart import card_and_place


def chart(
    found: Comparison,
    measure: str | None = None,
    *,
    heads: bool = False,
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
) -> Any:
    """A line for every survey; without `measure`, of what the worst finding was read from, or of the largest change.

    With `heads`, the last survey minus the first, head by head.
    """
    if measure is None:
        measure, part, place = _most_telling(found, heads, part)
        stack, site = stack or place[0], site or place[1]
    card, where = card_and_place(found.first, measure, stack, "stream" if site == "middle" else site)
    if heads:
        if card.scope == "stream":
            raise RefusalError(f"'{card.name}' has one number a block and none for each head: leave heads= out.")
        return difference_grid(found.first.table(), found.second.table(), card, part=part, **where)
    told = zip(found.surveys, labels(found), strict=True)
    tables = [(survey.table(), name) for survey, name in told]
    shown = [(table, name) for table, name in tables if (card.name, where["stack"], where["site"]) in panels(table)]
    if len(shown) < 2:
        raise RefusalError(f"'{card.name}' was measured there in one survey only: name a measure that two have.")
    return comparison_profile(
        [table for table, _ in shown], card, names=[name for _, name in shown], part=part, **where
    )


def _most_telling(
    found: Comparison, heads: bool, part: str | None
) -> tuple[str | None, str | None, tuple[str | None, str | None]]:
    """Measure, part, and stack and site: behind the first finding that is new or worse, else of the largest change."""
    for pair in found.regressions():
        card = found.first.cards.get(str(pair.measure))
        if card and (not heads or card.scope != "stream") and (pair.stack in found.first.stacks):
            shared = [c for c in found.changes if (c.measure, c.stack) == (card.name, pair.stack)]
            if shared:
                return card.name, part, (pair.stack, pair.site)
    for top in found.changes:
        if top.head is not None or not heads:
            return top.measure, part or top.part, (top.stack, top.site)
    return None, part, (None, None)
