"""Differences of the numbers of two surveys, and how large they are.

Measures have different units. To rank differences across them, each is divided by

    max(sampling error, hundredth of the scale)

`effect` counts these. The sampling error of a difference of means is sqrt(s_a^2 / n_a + s_b^2 / n_b) over sequences. If
both surveys read the same tokens it is an upper bound, because easy and hard texts are the same on both sides. The
scale is 1 for shares and cosines (any measure whose range is at most 2). For all others it is the larger of both
numbers, and at least the median of the measure over all places. So an effect of 100 is a number that was nearly zero
before or is now, or a share that went from 0 to 1; and a spread near zero never makes a small difference large. Places
with bit-equal means are counted, not listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError

HUNDREDTH = 0.01
NARROW = 2.0  # a range up to this is its own scale
_MOST_NAMES = 3
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True)
class Change:
    """The mean of one measure at one place in two surveys. `head` is None for the stream."""

    measure: str
    part: str
    stack: str
    site: str
    layer: int
    head: int | None
    before: float
    after: float
    difference: float
    effect: float  # the difference divided by its sampling error or a hundredth of its scale, whichever is larger
    survey: int = 1  # index in `Comparison.surveys` of the survey that is compared with the first

    @property
    def block(self) -> int:
        """The block that made this number; -1 for the stream that enters block 0."""
        return self.layer - 1 if self.site == "stream" else self.layer


class Pair(NamedTuple):
    """The mean of one place and head in both surveys, and the sampling error of the difference."""

    key: Key
    head: int | None
    before: float
    after: float
    error: float


def pairs(first: Survey, other: Survey) -> list[Pair]:
    """Return every place and head that has a finite mean in both surveys."""
    return [
        Pair(key, head, a, b, error)
        for key in first.cells
        if key in other.cells
        for head, a, b, error in _heads(first.cells[key], other.cells[key])
        if math.isfinite(a) and math.isfinite(b)
    ]


def _heads(old: Cell, new: Cell) -> Iterator[tuple[int | None, float, float, float]]:
    means = [np.ravel(cell.moments.mean).tolist() for cell in (old, new)]
    errors = [np.ravel(cell.moments.variance / np.maximum(cell.moments.count, 1)).tolist() for cell in (old, new)]
    for head, (a, b, one, two) in enumerate(zip(*means, *errors, strict=False)):
        yield (head if old.shape else None), a, b, math.sqrt(one + two)


def changes_between(first: Survey, other: Survey, index: int) -> tuple[list[Change], int]:
    """Return every number that differs, and how many do not. Refuse surveys without a common number."""
    if not any(key in other.cells for key in first.cells):
        raise RefusalError(_nothing_in_common(first, other, index))
    rows = pairs(first, other)
    typical = medians(rows)
    found = []
    for key, head, a, b, error in (row for row in rows if row.before != row.after):
        card = first.cards[key.measure]
        unit = max(error, HUNDREDTH * scale(card, a, b, typical[key[:2]]))
        effect = (b - a) / unit if unit > 0 else 0.0
        found.append(Change(*key, head=head, before=a, after=b, difference=b - a, effect=effect, survey=index))
    return found, len(rows) - len(found)


def medians(rows: list[Pair]) -> Mapping[tuple[str, ...], float]:
    """Return the median size of each measure and part over all places of both surveys."""
    sizes: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        sizes.setdefault(row.key[:2], []).extend((abs(row.before), abs(row.after)))
    return {name: float(np.median(values)) for name, values in sizes.items()}


def scale(card: Card, a: float, b: float, typical: float) -> float:
    """Return the size to which a difference of `a` and `b` is compared."""
    return 1.0 if card.high - card.low <= NARROW else max(abs(a), abs(b), typical)


def _nothing_in_common(first: Survey, second: Survey, index: int) -> str:
    """Return why two surveys cannot be compared: one is empty, or they share no measure, stack or place."""
    other = _ORDINALS[index] if index < len(_ORDINALS) else f"{index + 1}th"
    sides = ("first", first), (other, second)
    for which, survey in sides:
        if not survey.cells:
            return f"These surveys cannot be compared, because the {which} one holds no number: scan its model again."
    measures = [sorted({key.measure for key in survey.cells}) for _, survey in sides]
    if set(measures[0]).isdisjoint(measures[1]):
        listed = [", ".join(names[:_MOST_NAMES]) + (", ..." if names[_MOST_NAMES:] else "") for names in measures]
        return (
            f"These surveys cannot be compared, because they share no measure (the first has {listed[0]}; the {other}"
            f" {listed[1]}): scan both models with the same `measures=`."
        )
    if set(first.stacks).isdisjoint(second.stacks):
        parts = [" and ".join(f"the {stack}" for stack in survey.stacks) for _, survey in sides]
        return (
            f"These surveys cannot be compared, because the first is of {parts[0]} of its model and the {other} of"
            f" {parts[1]}: compare models of the same kind."
        )
    return (
        "These surveys cannot be compared, because no measure was taken at the same block in both:"
        " scan both models with the same `measures=`."
    )
