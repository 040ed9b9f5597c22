"""The picture of one measure of a survey: against depth, or as a map of blocks and heads.

survey.chart("entropy")    survey.chart("sink_mass", heads=True)    survey.chart("spike", stack="decoder")
"""

from __future__ import annotations

from typing import Any

from attnscope.charts.depth_profile import depth_profile
from attnscope.charts.head_grid import head_grid
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError, nearest
from attnscope.records.survey.baseline import largest
from attnscope.records.survey.survey import Survey

FIRST_CHOICE = "relative_residual"


def chart(
    survey: Survey,
    measure: str | None = None,
    *,
    heads: bool = False,
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
) -> Any:
    """Without `measure` the residual, or what was measured first; `stack` and `site` default to the first place."""
    card, place = card_and_place(survey, measure, stack, site)
    if not heads:
        return depth_profile(survey.table(), card, **place)
    if card.scope == "stream":
        raise RefusalError(f"'{card.name}' has one number a block and none for each head: leave heads= out.")
    bound = largest(survey, card, place["stack"], place["site"])
    return head_grid(survey.table(), card, part=part or card.parts[0], bound=bound, **place)


def card_and_place(
    survey: Survey, measure: str | None, stack: str | None, site: str | None
) -> tuple[Card, dict[str, Any]]:
    """The card and the place that these words mean, or a refusal that says which there are."""
    if not survey.cells:
        raise RefusalError("The survey holds no number to draw: scan again.")
    seen = {key.measure for key in survey.cells}
    name = measure or (FIRST_CHOICE if FIRST_CHOICE in seen else next(iter(sorted(seen))))
    if name not in survey.cards:
        raise RefusalError(f"This survey has no measure '{name}'.{nearest(name, survey.cards)}")
    card = survey.cards[name]
    places = survey.places(name, card.parts[0])
    fits = [place for place in places if stack in (None, place[0]) and site in (None, place[1])]
    if not fits:
        known = ", ".join(" ".join(place) for place in places) or "nowhere"
        raise RefusalError(f"'{name}' was not measured there: it is at {known}.")
    return card, {"stack": fits[0][0], "site": fits[0][1]}
