"""The record of `collapse`: curves of the relative residual against depth, bounds, and provenance.

    found.curves["san"].mean[3]        mean residual of the stream that enters block 3; the last is after all blocks
    found.bounds[0].contraction        bound (a) for block 0; matrix.collapse_bounds explains the letters
    found.save("collapse.json"); Collapse.load("collapse.json")

Missing numbers (such as a fit through too few points) are NaN. `published` reads the curves of figure 2 of
arXiv:2103.03404 from dong2021_residual_curves.json: BERT, Albert and XLNet, random and pretrained weights, four
variants, as means over 32 sequences of 128 tokens at depths 0..12, to four decimals. A published 0 means a value below
0.00005. The paper used other text, other seeds, float32, and the initialisation of its time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import isnan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.ranges import (
    INFINITE,
    NAN,
    AsMany,
    AtLeast,
    Count,
    FiniteOrNan,
    Index,
    Positive,
    Provenance,
    Several,
    Share,
    Size,
    Within,
    slack,
)
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

Residual = Annotated[float, Within(-slack(0.0), 2 + slack(2.0), "a relative residual from 0 to 2"), NAN]
"""`matrix.residual` shows that it is below 2 in every norm, so its means, percentiles and deviations are too."""
Bound = Annotated[Size, INFINITE]  # the product of norms may overflow
Log10 = Annotated[float, Within(-400.0, 400.0, "the logarithm of a float"), INFINITE]
VARIANTS = ("san", "san+mlp", "san+skip", "whole")
BOUNDS = ("contraction", "cubic", "theorem 2.3", "corollary 3.2")


@dataclass(frozen=True)
class Curve:
    """The relative residual of one variant at depths 0..layers, over `n` sequences of all seeds at each depth."""

    variant: str
    title: str
    mean: tuple[Residual, ...]
    std: Annotated[tuple[Residual, ...], AsMany("mean")]
    low: Annotated[tuple[Residual, ...], AsMany("mean")]  # 10th percentile
    high: Annotated[tuple[Residual, ...], AtLeast("low")]  # 90th percentile
    n: Annotated[tuple[Count, ...], AsMany("mean")]
    by_seed: tuple[tuple[Residual, ...], ...]  # the mean of every seed, if there are several
    order: FiniteOrNan  # p in r_{l+1} ~ r_l^p; NaN if fewer than two pairs of depths are above the floor
    pairs: Count


@dataclass(frozen=True)
class LayerBounds:
    """Bounds of one block of attention alone, as medians over sequences. A bound that does not apply is None."""

    layer: Index
    sequences: Count
    before: Size  # diameter of what attention reads
    after: Size  # diameter of what it writes, bounded by `contraction` and `cubic`
    contraction: Bound  # (a)
    cubic: Bound | None  # (c)
    tau: Share  # largest over heads
    tau_bound: Share | None  # (b), a tanh
    residual_before: Size
    residual_after: Size  # bounded by `paper`
    paper: Bound | None  # Theorem 2.2
    spread: Size | None  # largest over sequences; the theorem allows at most 1.256
    condition_met: Count | None  # number of sequences with a spread that the theorem allows
    rounding: Size  # a value of `after` below this is rounding
    violations: Count  # how often a bound that applies is exceeded: 0 unless something is wrong


@dataclass(frozen=True)
class SkipBounds:
    """Growth diam(X + SA) / diam(X) of one block with a skip. By (d) it is between 1 - strength and 1 + strength."""

    layer: Index
    sequences: Count
    growth: Size
    strength: Size
    violations: Count


@dataclass(frozen=True)
class EndToEnd:
    """A bound from the first block to each depth and the measured value, as log10 of the maximum over sequences."""

    name: str  # "contraction" (a), "cubic" (c), "theorem 2.3" or "corollary 3.2"
    variant: str
    of: str  # "diameter" or "residual"
    bound: tuple[float, ...]  # of any size: theorem 2.3 has the exponent 3^depth
    truth: tuple[Log10, ...]
    applies: bool
    why_not: str = ""


@dataclass(frozen=True, repr=False)
class Collapse(Record):
    """The residual of one stack of a model against depth."""

    KIND: ClassVar[str] = "collapse"
    COMMAND: ClassVar[str] = "collapse"
    FILE: ClassVar[str] = "collapse.json"

    model: str
    class_name: str
    stack: str
    norm_placement: str
    layers: Several
    heads: Several
    tokens: Several  # in the longest sequence
    weights: str  # "random", "trained", or "as given" for a model in memory
    norm: str  # the norm of the residual
    floor: Positive  # numbers below this are rounding
    curves: dict[str, Curve]
    bounds: tuple[LayerBounds, ...] = ()
    skip_bounds: tuple[SkipBounds, ...] = ()
    ends: tuple[EndToEnd, ...] = ()
    order: FiniteOrNan = math.nan  # p in after ~ before^p, for diameters in single blocks of attention alone
    pairs: Count = 0  # number of points behind `order`
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)

    @property
    def weights_words(self) -> str:
        """Return `random weights`, `trained weights` or `weights as given`."""
        return "weights as given" if self.weights == "as given" else f"{self.weights} weights"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Collapse:
        found = super().from_json(data)
        _refuse_contradictions(found)
        return found

    def table(self) -> pandas.DataFrame:
        """Return one row for each variant and depth."""
        import pandas

        columns = ("mean", "std", "low", "high", "n")
        rows = [
            {"variant": name, "depth": depth, **{column: getattr(curve, column)[depth] for column in columns}}
            for name, curve in self.curves.items()
            for depth in range(len(curve.mean))
        ]
        return pandas.DataFrame(rows, columns=["variant", "depth", *columns])

    def __repr__(self) -> str:
        ends = ", ".join(f"{name} {curve.mean[-1]:.2g}" for name, curve in self.curves.items())
        return f"<Collapse of {self.model}: {self.layers} blocks leave {ends}>"


def _refuse_contradictions(record: Collapse) -> None:
    """Refuse fields that have the right types but contradict each other."""
    if not record.curves:
        raise FieldError("curves: at least one is needed")
    for name, curve in record.curves.items():
        if name not in VARIANTS:
            raise FieldError(f"curves['{name}']: not one of {', '.join(VARIANTS)}")
        if {len(curve.mean), *map(len, curve.by_seed)} != {record.layers + 1}:
            raise FieldError(f"curves['{name}']: a number for each depth from 0 to layers is needed")
        if not isnan(curve.order) and curve.pairs < 2:
            raise FieldError(f"curves['{name}'].order: a fit needs at least 2 pairs")
        columns = zip(curve.mean, curve.std, curve.low, curve.high, strict=True)
        for depth, (n, numbers) in enumerate(zip(curve.n, columns, strict=True)):
            if any(math.isnan(number) != (n == 0) for number in numbers):
                raise FieldError(f"curves['{name}'].n[{depth}]: numbers are needed there unless it is 0")
            seeds = [row[depth] for row in curve.by_seed if not isnan(row[depth])]
            if curve.by_seed and n and not _amid(curve.mean[depth], seeds):
                raise FieldError(f"curves['{name}'].mean[{depth}]: a number amid those of by_seed is needed")
    for field_name in ("bounds", "skip_bounds"):
        for number, row in enumerate(getattr(record, field_name)):
            if row.layer >= record.layers:
                raise FieldError(f"{field_name}[{number}].layer: one of {record.layers} blocks is needed")
    for number, end in enumerate(record.ends):
        if end.name not in BOUNDS or not end.bound or not end.truth:
            raise FieldError(f"ends[{number}]: a known name, a bound and measured values are needed")
    corpus = record.provenance.get("corpus")
    if not isinstance(corpus, Mapping) or not {"name", "sequences"} <= corpus.keys():
        raise FieldError("provenance['corpus']: its name and sequences are missing")


def _amid(mean: float, numbers: list[float]) -> bool:
    """Return whether a weighted mean of these numbers can be `mean`."""
    return bool(numbers) and min(numbers) - slack(mean) <= mean <= max(numbers) + slack(mean)


NAMES = {"san": "SAN", "san+mlp": "SAN+MLP", "san+skip": "SAN+skip", "whole": "transformer"}
SHAPE_OF = {"BERT": "bert-base", "Albert": "albert-base", "XLNet": "xlnet-base"}
ROUNDED = 5e-5  # a published 0 means a value below this


@dataclass(frozen=True)
class Published:
    """The paper's curves of one model, under our names for the variants."""

    model: str
    weights: str  # "random" or "trained"
    curves: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Difference:
    """Our residual and the published one at one depth."""

    variant: str
    depth: int
    ours: float
    theirs: float

    @property
    def apart(self) -> float:
        """Return |ours - theirs|; for a published 0, our excess over `ROUNDED`; NaN if ours is NaN."""
        return abs(self.ours - self.theirs) if self.theirs > 0 or isnan(self.ours) else max(0.0, self.ours - ROUNDED)


def published(model: str, weights: str = "random") -> Published:
    """Return the curves of "BERT", "Albert" or "XLNet" with "random" or "trained" weights ("as given" is trained)."""
    known = {name.lower(): name for name in _all()}
    name = known.get(model.lower())
    if name is None:
        raise RefusalError(f"The paper has no curves of '{model}'.{nearest(model, list(_all()))}")
    weights = "trained" if weights == "as given" else weights
    if weights not in ("random", "trained"):
        raise RefusalError(f"Curves were published for random and trained weights, not for '{weights}': choose one.")
    found = _all()[name]["init" if weights == "random" else "pretrained"]
    return Published(name, weights, {ours: tuple(found[theirs]) for ours, theirs in NAMES.items()})


def differences(curves: Mapping[str, Any], reference: Published) -> tuple[Difference, ...]:
    """Return the differences from published curves, at all depths and variants that both have."""
    return tuple(
        Difference(name, depth, float(ours), theirs)
        for name, curve in curves.items()
        if name in reference.curves
        for depth, (ours, theirs) in enumerate(zip(curve.mean, reference.curves[name], strict=False))
    )


@cache
def _all() -> dict[str, Any]:
    text = files("attnscope.commands.collapse").joinpath("dong2021_residual_curves.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
