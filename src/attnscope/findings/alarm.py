"""Report the alarm on a measure's card, for measures that no other finding reads.

So a new measure with an alarm needs no finding of its own. The threshold that `OF_MEASURES` names for it replaces the
limit on the card.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.scan.diagnose import OF_MEASURES, Thresholds
from attnscope.commands.scan.survey.readings import Grid, grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.finding import Finding, finding
from attnscope.core.registry import findings
from attnscope.core.words import blocks, count, entering, number


@finding(
    order=900,
    reads=(),
    summary="The alarm on the card of a measure that no other finding reads.",
    citation="the card of the measure",
    severity="to_know if most places are beyond the limit on the card, else note: a limit is a hint, not a fault",
)
def alarm(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    elsewhere = {measure for kind in findings().values() for measure in kind.reads}
    for name, card in survey.cards.items():
        if card.alarm is None or name in elsewhere:
            continue
        for grid in grids(survey, name, card.parts[0]):
            yield from _beyond_limit(card, grid, thresholds)


def _beyond_limit(card: Card, grid: Grid, thresholds: Thresholds) -> Iterator[Finding]:
    assert card.alarm is not None
    named = OF_MEASURES.get(card.name)
    limit = card.alarm.threshold if named is None else float(getattr(thresholds, named))
    above = card.alarm.relation == ">"
    mask = grid.means > limit if above else grid.means < limit
    if not mask.any():
        return
    places = np.argwhere(mask)
    # A measure of a block's effect on the stream is stored at the next depth, where the stream leaves the block.
    depths = tuple(sorted({int(place[0]) - card.of_block for place in places}))
    worst = float(np.nanmax(grid.means) if above else np.nanmin(grid.means))
    many = mask.sum() > thresholds.most_heads * grid.measured
    heads = grid.chosen(mask) if mask.ndim == 2 else ()
    # The card's words ("ten times longer") only fit the card's own limit.
    meaning = f": {card.alarm.meaning.rstrip('.')}" if limit == card.alarm.threshold else ""
    if heads:
        where = f"in {len(heads):,} of {count(grid.measured, 'head')} ({blocks(depths)})"
    elif card.of_block or grid.site != "stream":
        where = f"in {blocks(depths)}"
    else:
        where = entering(depths, len(grid.means) - 1)
    yield Finding(
        kind=alarm.name,
        severity="to_know" if many else "note",
        stack=grid.stack,
        layers=depths,
        heads=heads,
        sentence=(
            f"{card.title} is {'above' if above else 'below'} {number(limit)} {where}{grid.tail}"
            f" ({'up' if above else 'down'} to {number(worst)}){meaning}."
        ),
        value=worst,
        threshold=limit,
        threshold_name=named or f"{card.name} alarm",
        citation=card.citation,
        advice=card.summary,
        details={"measure": card.name, "site": grid.site},
    )
