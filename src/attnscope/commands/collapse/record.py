"""What `collapse` found: curves of the relative residual against depth, bounds beside them, provenance.

    found.curves["san"].mean[3]        mean over sequences (and seeds) of the residual entering block 3; last: leaving
    found.bounds[0].contraction        bound (a) on what block 0 leaves; matrix.collapse_bounds explains the letters
    found.save("collapse.json"); Collapse.load("collapse.json")

Missing numbers (such as a fit through too few points) are NaN. `published` reads the curves of figure 2 of
arXiv:2103.03404 from dong2021_residual_curves.json: BERT, Albert and XLNet, random and pretrained weights, four
variants, as means over 32 sequences of 128 tokens at depths 0..12, to four decimals. A 0 there is anything below
0.00005. Their text, seeds and float32 are not ours, and random weights are drawn as the library of the time did.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import isnan
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

VARIANTS = ("san", "san+mlp", "san+skip", "whole")
BOUNDS = ("contraction", "cubic", "theorem 2.3", "corollary 3.2")


@dataclass(frozen=True)
class Curve:
    """Relative residual of one variant at depths 0..layers, over `n` sequences (of all seeds) each."""

    variant: str
    title: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]  # 10th percentile
    high: tuple[float, ...]  # 90th
    n: tuple[int, ...]
    by_seed: tuple[tuple[float, ...], ...]  # the mean of every seed
    order: float  # p in r_{l+1} ~ r_l^p; NaN where fewer than two pairs of depths are above the floor
    pairs: int


@dataclass(frozen=True)
class LayerBounds:
    """One block of attention alone: medians over sequences. None: the bound does not apply to this block."""

    layer: int
    sequences: int
    before: float  # diameter of what attention reads
    after: float  # of what it writes: the truth beside `contraction` and `cubic`
    contraction: float  # (a)
    cubic: float | None  # (c)
    tau: float  # largest over heads
    tau_bound: float | None  # (b)
    residual_before: float
    residual_after: float  # the truth beside `paper`
    paper: float | None  # Theorem 2.2
    spread: float | None  # largest over sequences; the theorem asks for 1.256 at most
    condition_met: int | None  # sequences in which it is
    rounding: float  # what is below it in `after` is rounding
    violations: int  # of any bound that applies, in any sequence: 0 unless something is wrong


@dataclass(frozen=True)
class SkipBounds:
    """One block with a skip: diam(X + SA) / diam(X), and (d): between 1 - strength and 1 + strength."""

    layer: int
    sequences: int
    growth: float
    strength: float
    violations: int


@dataclass(frozen=True)
class EndToEnd:
    """A bound from the first block to every depth, as log10, and the measured value; the largest over sequences."""

    name: str  # "contraction" (a), "cubic" (c), "theorem 2.3" or "corollary 3.2"
    variant: str
    of: str  # "diameter" or "residual"
    bound: tuple[float, ...]
    truth: tuple[float, ...]
    applies: bool
    why_not: str = ""


@dataclass(frozen=True, repr=False)
class Collapse(Record):
    """Residual against depth of one stack of one model."""

    KIND: ClassVar[str] = "collapse"
    COMMAND: ClassVar[str] = "collapse"
    FILE: ClassVar[str] = "collapse.json"

    model: str
    class_name: str
    stack: str
    norm_placement: str
    layers: int
    heads: int
    tokens: int  # in the longest sequence
    weights: str  # "random", "trained", or "as given": a model in memory, of which nothing more is known
    norm: str  # the yardstick
    floor: float  # below it, numbers are rounding
    curves: dict[str, Curve]
    bounds: tuple[LayerBounds, ...] = ()
    skip_bounds: tuple[SkipBounds, ...] = ()
    ends: tuple[EndToEnd, ...] = ()
    order: float = math.nan  # p in after ~ before^p, single layers of attention alone (diameters)
    pairs: int = 0  # readings behind `order`
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

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


def _refuse_contradictions(found: Collapse) -> None:
    """Refuse fields that have the right types but contradict each other."""
    if not found.curves:
        raise FieldError("curves: there is none")
    for name, curve in found.curves.items():
        if name not in VARIANTS:
            raise FieldError(f"curves['{name}']: not one of {', '.join(VARIANTS)}")
        if not curve.mean or any(len(one) != len(curve.mean) for one in (curve.std, curve.low, curve.high, curve.n)):
            raise FieldError(f"curves['{name}']: its columns are not of one length")
        if any(
            math.isfinite(m) and not math.isfinite(a + b)
            for m, a, b in zip(curve.mean, curve.low, curve.high, strict=True)
        ):
            raise FieldError(f"curves['{name}']: a mean has no percentiles")
    if not 0 < found.floor < math.inf:
        raise FieldError(f"floor: {found.floor} is no floor of rounding")
    if not all(math.isfinite(one.rounding) for one in found.bounds):
        raise FieldError("bounds: rounding is not a number")
    for number, end in enumerate(found.ends):
        if end.name not in BOUNDS or not end.bound or not end.truth:
            raise FieldError(f"ends[{number}]: not a bound with its truth")
    corpus = found.provenance.get("corpus")
    if not isinstance(corpus, Mapping) or not {"name", "sequences"} <= corpus.keys():
        raise FieldError("provenance['corpus']: its name and sequences are missing")


NAMES = {"san": "SAN", "san+mlp": "SAN+MLP", "san+skip": "SAN+skip", "whole": "transformer"}
SHAPE_OF = {"BERT": "bert-base", "Albert": "albert-base", "XLNet": "xlnet-base"}
ROUNDED = 5e-5  # what is published as 0 lies below this


@dataclass(frozen=True)
class Published:
    """The paper's curves of one model, by our names of the variants."""

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
        """Return |ours - theirs|, or our excess over the value that they round to 0; NaN if ours is NaN."""
        return abs(self.ours - self.theirs) if self.theirs > 0 or isnan(self.ours) else max(0.0, self.ours - ROUNDED)


def published(model: str, weights: str = "random") -> Published:
    """Return the curves of `BERT`, `Albert` or `XLNet`, for `random` or `trained` weights; `as given` counts as
    trained.
    """
    known = {name.lower(): name for name in _all()}
    name = known.get(model.lower())
    if name is None:
        raise RefusalError(f"The paper has no curves of '{model}'.{nearest(model, list(_all()))}")
    weights = "trained" if weights == "as given" else weights
    if weights not in ("random", "trained"):
        raise RefusalError(f"Curves were published of random and of trained weights, not of '{weights}'.")
    found = _all()[name]["init" if weights == "random" else "pretrained"]
    return Published(name, weights, {ours: tuple(found[theirs]) for ours, theirs in NAMES.items()})


def differences(curves: Mapping[str, Any], reference: Published) -> tuple[Difference, ...]:
    """Return the differences at all depths and variants that both have; `curves` as in `Collapse.curves`."""
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
