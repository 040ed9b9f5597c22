"""The record of a placement: every number of a model beside those of the real models of its kind in the atlas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from attnscope.commands.atlas.ranges import Pools, Quantity, balanced_shares, like, range_of, unlike
from attnscope.commands.atlas.record import Atlas, EntryStack, Grid, Shape, StackKind
from attnscope.core.measure import measure_cards
from attnscope.core.ranges import AtLeast, AtMost, Count, Finite, Share
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

HALVES = ("write", "slope")  # measures of a trial, which have a part for attention and one for the MLP


@dataclass(frozen=True)
class Placed:
    """One measure of one stack. Numbers with a largest possible value are shares of it.

    `low`, `median` and `high` are 5%, 50% and 95% over the places (heads or depths) of this model, `usual_low`,
    `usual_median` and `usual_high` those over real models and their places. `low_share`, `median_share` and
    `high_share` say what share of the numbers of real models is smaller.
    """

    measure: str
    part: str
    stack: str
    site: str
    places: Count
    low: Finite
    median: Annotated[Finite, AtLeast("low")]
    high: Annotated[Finite, AtLeast("median")]
    usual_low: Finite
    usual_median: Annotated[Finite, AtLeast("usual_low")]
    usual_high: Annotated[Finite, AtLeast("usual_median")]
    below: Share  # of the places of this model
    above: Share
    low_share: Share
    median_share: Share
    high_share: Share
    models: Count
    smaller: Annotated[Count, AtMost("models")]  # models with a smaller median
    kind: str  # "decoders", "medium decoders"

    @property
    def inside(self) -> float:
        """The share of places in the usual range."""
        return 1 - self.below - self.above


@dataclass(frozen=True, repr=False)
class Placement(Record):
    """A model among real models. `others` has the share of usual numbers of each real model of the same kind."""

    KIND: ClassVar[str] = "placement"
    COMMAND: ClassVar[str] = "compare"
    FILE: ClassVar[str] = "placement.json"

    model: str
    kind: StackKind
    rows: tuple[Placed, ...]
    others: tuple[Share, ...]  # sorted
    notes: tuple[str, ...] = ()

    @property
    def inside(self) -> float:
        """The mean over measures of the share of places in the usual range."""
        return float(np.mean([row.inside for row in self.rows])) if self.rows else float("nan")

    def table(self) -> pandas.DataFrame:
        """Return one row for each measure and stack."""
        import pandas

        return pandas.DataFrame([asdict(row) | {"inside": row.inside} for row in self.rows])

    def __repr__(self) -> str:
        return f"<Placement of {self.model[-80:]}: {self.inside:.0%} of {len(self.rows)} measures in the usual range>"


def placement_of(
    model: str, parameters: int, stacks: Sequence[EntryStack], atlas: Atlas, notes: tuple[str, ...] = ()
) -> Placement:
    """Place condensed stacks among the entries of the atlas that have another shape. The kind is that of the last
    stack."""
    shape = Shape(tuple((stack.layers, stack.heads) for stack in stacks), parameters)
    others = unlike(atlas.entries, shape)
    rows = tuple(
        _placed(stack, grid, found)
        for stack in stacks
        for grid in _first_parts(stack)
        if len(grid.values)
        and (found := like(others, parameters, Quantity(grid.measure, grid.part, stack.kind, grid.site)))
    )
    kind: StackKind = stacks[-1].kind if stacks else "encoder"
    alike = [entry.inside for entry in others if entry.stacks[-1].kind == kind]
    return Placement(model, kind, rows, tuple(sorted(share for share in alike if math.isfinite(share))), notes)


def _first_parts(stack: EntryStack) -> Iterator[Grid]:
    """Yield the first part of every measure, and both halves of what a trial measured."""
    cards = measure_cards()
    for grid in stack.grids:
        card = cards.get(grid.measure)
        if grid.measure in HALVES or (card is not None and grid.part == card.parts[0]):
            yield grid


def _placed(stack: EntryStack, grid: Grid, found: Pools) -> Placed:
    usual = range_of(found)
    own = np.quantile(grid.values, (0.05, 0.5, 0.95))
    low, median, high = own.tolist()
    low_share, median_share, high_share = balanced_shares(found.each, own).tolist()
    return Placed(
        grid.measure,
        grid.part,
        stack.name,
        grid.site,
        len(grid.values),
        low,
        median,
        high,
        usual.low,
        usual.median,
        usual.high,
        float((grid.values < usual.low).mean()),
        float((grid.values > usual.high).mean()),
        low_share,
        median_share,
        high_share,
        usual.models,
        sum(float(np.median(pool)) < median for pool in found.each),
        usual.kind,
    )
