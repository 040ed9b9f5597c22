"""Reference ranges: what is usual for a measure in healthy real models of the same kind.

    usual = reference(survey, "sink_mass", "value", "decoder", "self")
    usual.low, usual.high, usual.models           # 5% and 95% over models and heads
    usual.words                                   # "usual: 0.02-0.71 in 14 decoders"

Every model counts the same, however many heads it has. The model that is judged is left out, which is recognised by the
hash of its weights. Models of a similar size are used if there are at least five of them, otherwise all of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.atlas.record import Atlas, Entry, StackKind, bound_of
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.words import numeral

FEWEST = 5  # models behind a range
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
    survey: Survey, measure: str, part: str, stack: str, site: str, atlas: Atlas | None = None
) -> Reference | None:
    """Return the range for one measure of a survey, without its own model; None if too few models have it."""
    model = survey.provenance.get("model", {})
    kind = kind_of_stack(survey, stack)
    others = [entry for entry in (atlas or packaged()).entries if entry.hash != model.get("hash")]
    size = size_class(int(model.get("parameters") or 0))
    alike = [entry for entry in others if size_class(entry.parameters) == size]
    for entries, name in ((alike, f"{size} {kind}s"), (others, f"{kind}s")):
        found = pooled(entries, measure, part, kind, site)
        if found is not None:
            bound = bound_of(survey, measure, stack, site) if measure in survey.cards else 1.0
            low, median, high, lowest, highest = (bound * number for number in found[:5])
            return Reference(low, median, high, lowest, highest, found[5], name)
    return None


def pooled(
    entries: Iterable[Entry], measure: str, part: str, kind: StackKind, site: str
) -> tuple[float, float, float, float, float, int] | None:
    """Return 5%, 50%, 95%, the extremes and the number of models; None if fewer than `FEWEST` have the measure."""
    pools = [
        grid.values
        for entry in entries
        for stack in entry.stacks
        if stack.kind == kind and (grid := stack.grid(measure, part, site)) is not None and len(grid.values)
    ]
    if len(pools) < FEWEST:
        return None
    low, median, high = balanced_quantiles(pools, (0.05, 0.5, 0.95))
    lowest, highest = min(pool.min() for pool in pools), max(pool.max() for pool in pools)
    return low, median, high, float(lowest), float(highest), len(pools)


def balanced_quantiles(pools: Sequence[NDArray[np.float64]], shares: Sequence[float]) -> tuple[float, ...]:
    """Return quantiles of all numbers, in which every pool has the same weight."""
    values = np.concatenate(pools)
    weights = np.concatenate([np.full(len(pool), 1 / len(pool)) for pool in pools])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / len(pools)
    places = np.searchsorted(reached, np.asarray(shares) - 1e-12)
    return tuple(float(values[order][min(place, len(values) - 1)]) for place in places)
