"""Means of one measure at one place as an array over layers and heads: what findings are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

from attnscope.core.words import blocks, count, within
from attnscope.records.survey.cell import Cell
from attnscope.records.survey.survey import Survey, stack_means


@dataclass(frozen=True)
class Grid:
    stack: str
    site: str
    means: NDArray[np.float64]  # [layers, heads] or [layers], NaN where nothing was measured
    cells: dict[int, Cell]
    tail: str  # " of the encoder", where the model has several stacks

    @property
    def measured(self) -> int:
        """How many heads (or layers) have a number."""
        return int(np.isfinite(self.means).sum())

    def portion(self, found: Sequence[tuple[int, int]]) -> str:
        """`176 of 270 heads (blocks 12-29) of the decoder`."""
        depths = blocks(layer for layer, _ in found)
        return f"{len(found):,} of {count(self.measured, 'head')} ({depths}){self.tail}"

    def peak(self, place: tuple[int, int] | int) -> dict[str, int]:
        """Where the largest value at a place was: the number of the sequence (`sample`), and a token or key in it."""
        layer, head = place if isinstance(place, tuple) else (place, 0)
        return dict(self.cells[layer].peak.places()[head] or {})

    def chosen(self, mask: Bool[np.ndarray, "*shape"]) -> tuple[tuple[int, int], ...]:
        """The (layer, head) pairs where the mask is True, in order."""
        return tuple((int(layer), int(head)) for layer, head in np.argwhere(mask))

    def strongest(self, mask: Bool[np.ndarray, "*shape"]) -> list[tuple[int, int]]:
        """The same pairs, largest mean first."""
        return sorted(self.chosen(mask), key=lambda place: (-self.means[place], place))


def grids(survey: Survey, measure: str, part: str = "value") -> Iterator[Grid]:
    """One grid for each stack and site at which the measure was taken; none where it was not."""
    many = len(survey.stacks) > 1
    for stack, site in survey.places(measure, part):
        column = survey.column(measure, part, stack, site)
        yield Grid(stack, site, stack_means(column), column, within(stack, site, many))


def grid_at(survey: Survey, measure: str, stack: str, site: str, part: str = "value") -> Grid | None:
    return next((g for g in grids(survey, measure, part) if (g.stack, g.site) == (stack, site)), None)
