"""Reference ranges: what is usual for a measure in healthy real models of the same kind.

    usual = reference(survey, "sink_mass", "value", "decoder", "self")
    usual.low, usual.high, usual.models           # 5% and 95% over models and heads
    usual.words                                   # "usual: 0.02-0.71 in 14 decoders"

Every model counts the same, however many heads it has. Models of one shape count as one model, because most of them are
fine-tuned from the same weights, and a model is not judged by models of its own shape: its fine-tuned, damaged or
converted copies have that shape too. Models of a similar size are used if there are at least five of them, otherwise
all of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.atlas.record import Atlas, Entry, Shape, StackKind, bound_of, shape_of
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.words import numeral

FEWEST = 5  # models behind a range
SAME_SIZE = 0.05  # largest relative difference of the numbers of parameters of models of one shape
SIZES = ((0, "small"), (30_000_000, "medium"), (300_000_000, "large"))  # parameters from which a class begins


@dataclass(frozen=True)
class Reference:
    """The usual range of a measure. `lowest` and `highest` are the extremes over all models and heads."""

    low: float
    median: float
    high: float
    lowest: float
    highest: float
    models: int
    kind: str  # "decoders", "medium decoders"

    @property
    def words(self) -> str:
        """Return `usual: 0.02-0.71 in 14 decoders`."""
        return f"usual: {numeral(self.low, 2)} to {numeral(self.high, 2)} in {self.models} {self.kind}"


@cache
def packaged() -> Atlas:
    """Return the atlas in the package."""
    with resources.as_file(resources.files("attnscope.commands.atlas").joinpath("atlas.json.gz")) as file:
        return Atlas.load(file)


def size_class(parameters: int) -> str:
    """Return `small`, `medium` or `large`."""
    return next(name for bound, name in reversed(SIZES) if parameters >= bound)


def kind_of_stack(survey: Survey, stack: str) -> StackKind:
    stacks = survey.provenance.get("model", {}).get("stacks", [])
    causal = any(s.get("name") == stack and s.get("causal") for s in stacks)
    return "decoder" if causal else "encoder"


def reference(
    survey: Survey,
    measure: str,
    part: str,
    stack: str,
    site: str,
    atlas: Atlas | None = None,
    *,
    of_size: bool = True,
) -> Reference | None:
    """Return the range for one measure of a survey, without models of its shape; None if too few models have it.

    `of_size=False` takes models of all sizes, which gives the widest range.
    """
    shape = shape_of(survey)
    others = unlike((atlas or packaged()).entries, shape)
    parameters = shape.parameters if of_size else None
    found = like(others, parameters, Quantity(measure, part, kind_of_stack(survey, stack), site))
    if found is None:
        return None
    bound = bound_of(survey, measure, stack, site) if measure in survey.cards else 1.0
    return range_of(found, bound)


def unlike(entries: Iterable[Entry], shape: Shape) -> list[Entry]:
    """Return the entries of another shape."""
    return [entry for entry in entries if not same_shape(entry.shape, shape)]


def same_shape(one: Shape, other: Shape) -> bool:
    """Return whether two models have the same blocks and heads, and nearly as many parameters."""
    apart = abs(one.parameters - other.parameters)
    return one.stacks == other.stacks and apart <= SAME_SIZE * max(one.parameters, other.parameters)


@dataclass(frozen=True)
class Quantity:
    """A measure at a kind of place, whose numbers can be compared between models."""

    measure: str
    part: str
    kind: StackKind
    site: str


@dataclass(frozen=True)
class Pools:
    """The numbers of one quantity in several models: one array for all models of one shape."""

    each: tuple[NDArray[np.float64], ...]
    kind: str  # "decoders", "medium decoders"


def like(entries: Sequence[Entry], parameters: int | None, quantity: Quantity) -> Pools | None:
    """Return the numbers of models of a similar size if there are enough of them, else of all models of that kind."""
    size = "" if parameters is None else size_class(parameters)
    alike = [entry for entry in entries if size_class(entry.parameters) == size]
    for some, name in ((alike, f"{size} {quantity.kind}s"), (entries, f"{quantity.kind}s")):
        each = pools(some, quantity)
        if len(each) >= FEWEST:
            return Pools(each, name)
    return None


def pools(entries: Iterable[Entry], quantity: Quantity) -> tuple[NDArray[np.float64], ...]:
    """Return the numbers of every shape of model that has the quantity."""
    groups: list[tuple[Shape, list[NDArray[np.float64]]]] = []
    for entry in entries:
        own = [
            grid.values
            for stack in entry.stacks
            if stack.kind == quantity.kind
            and (grid := stack.grid(quantity.measure, quantity.part, quantity.site)) is not None
            and len(grid.values)
        ]
        if own:
            known = next((values for shape, values in groups if same_shape(shape, entry.shape)), None)
            if known is None:
                groups.append((entry.shape, own))
            else:
                known += own
    return tuple(np.concatenate(values) for _, values in groups)


def range_of(found: Pools, bound: float = 1.0) -> Reference:
    """Return 5%, 50%, 95% and the extremes over models and places, times the largest possible value at this length."""
    low, median, high = balanced_quantiles(found.each, (0.05, 0.5, 0.95))
    ends = min(pool.min() for pool in found.each), max(pool.max() for pool in found.each)
    low, median, high, lowest, highest = (bound * float(number) for number in (low, median, high, *ends))
    return Reference(low, median, high, lowest, highest, len(found.each), found.kind)


def balanced_shares(found: Sequence[NDArray[np.float64]], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for every value the share of numbers below it (half of the equal ones), every pool with equal weight."""
    below = [
        (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / (2 * len(ordered))
        for ordered in map(np.sort, found)
    ]
    return np.asarray(np.mean(below, axis=0))


def balanced_quantiles(pools: Sequence[NDArray[np.float64]], shares: Sequence[float]) -> tuple[float, ...]:
    """Return quantiles of all numbers, in which every pool has the same weight."""
    values = np.concatenate(pools)
    weights = np.concatenate([np.full(len(pool), 1 / len(pool)) for pool in pools])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / len(pools)
    places = np.searchsorted(reached, np.asarray(shares) - 1e-12)
    return tuple(float(values[order][min(place, len(values) - 1)]) for place in places)
