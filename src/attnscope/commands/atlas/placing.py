"""Place a model among real models of its kind: which of its numbers are usual, and which are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnscope.commands.atlas.ranges import Reference, reference
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.words import numeral, percent, within

MOST_UNUSUAL = 2  # measures that a sentence names


@dataclass(frozen=True)
class Placed:
    """One measure of a model beside its usual range: the share of its places below, inside and above."""

    measure: str
    title: str
    where: str  # " of the encoder", if the model has several stacks
    median: float
    below: float
    above: float
    usual: Reference

    @property
    def inside(self) -> float:
        return 1 - self.below - self.above


def placed(survey: Survey) -> Iterator[Placed]:
    """Yield every measure of a survey that has a usual range."""
    many = len(survey.stacks) > 1
    for name, card in survey.cards.items():
        for grid in grids(survey, name, card.parts[0]):
            usual = reference(survey, name, card.parts[0], grid.stack, grid.site)
            values = grid.means[np.isfinite(grid.means)]
            if usual is None or not len(values):
                continue
            below, above = float((values < usual.low).mean()), float((values > usual.high).mean())
            where = within(grid.stack, grid.site, many)
            yield Placed(name, card.title, where, float(np.median(values)), below, above, usual)


def place_sentence(survey: Survey) -> str | None:
    """Return how many of a model's numbers are usual, and the measures that are least so; None without ranges."""
    found = list(placed(survey))
    if not found:
        return None
    inside = float(np.mean([each.inside for each in found]))
    odd = sorted((each for each in found if each.inside < 0.5), key=lambda each: each.inside)[:MOST_UNUSUAL]
    models = max(each.usual.models for each in found)
    kind = found[0].usual.kind
    said = f"Beside {models} {kind} of the atlas, {percent(inside)} of its numbers are in the usual range"
    if not odd:
        return f"{said} (90% are, on average)."
    named = " and ".join(
        f"{each.title.lower()}{each.where} is {'high' if each.above > each.below else 'low'}"
        f" ({numeral(each.median, 2)}; {each.usual.words})"
        for each in odd
    )
    return f"{said} (90% are, on average); {named}."
