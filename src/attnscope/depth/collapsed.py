"""What `collapse` found, as plain data: curves of the relative residual against depth, bounds beside them, provenance.

    found.curves["san"].mean[3]        mean over sequences (and seeds) of the residual entering block 3; last: leaving
    found.bounds[0].contraction        bound (a) on what the first layer leaves; matrix.collapse_bounds has the letters
    found.save("collapse.json"); Collapse.load("collapse.json")

Nothing here needs torch. Numbers that are none (a fit through too few points) are NaN here and null in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.visible import parsed
from attnscope.survey.file import write_atomically
from attnscope.survey.provenance import plain

FORMAT = "attnscope-collapse"
VERSION = 1


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
    """One layer of attention alone: medians over sequences. None: the bound does not speak of this layer."""

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
    """One layer with a skip: diam(X + SA) / diam(X), and (d): between 1 - strength and 1 + strength."""

    layer: int
    sequences: int
    growth: float
    strength: float
    violations: int


@dataclass(frozen=True)
class EndToEnd:
    """A bound from the first layer to every depth, as log10, beside the truth; the largest over sequences."""

    name: str  # "contraction" (a), "cubic" (c), "theorem 2.3" or "corollary 3.2"
    variant: str
    of: str  # "diameter" or "residual"
    bound: tuple[float, ...]
    truth: tuple[float, ...]
    applies: bool
    why_not: str = ""


@dataclass(frozen=True, repr=False)
class Collapse:
    """Residual against depth of one stack of one model."""

    model: str
    class_name: str
    stack: str
    norm_placement: str
    layers: int
    heads: int
    tokens: int  # in the longest sequence
    weights: str  # "random" or "trained"
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

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = plain({"format": FORMAT, "version": VERSION, **asdict(self)})
        return document

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Collapse:
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            raise RefusalError("This is no collapse file of this version: run `attnscope collapse` again.")
        named = {f.name: data[f.name] for f in fields(cls)}
        named["curves"] = {name: _restored(Curve, one) for name, one in data["curves"].items()}
        for name, kind in (("bounds", LayerBounds), ("skip_bounds", SkipBounds), ("ends", EndToEnd)):
            named[name] = tuple(_restored(kind, one) for one in data[name])
        order = math.nan if data["order"] is None else data["order"]
        return cls(**{**named, "notes": tuple(data["notes"]), "order": order})

    def save(self, path: Path | str) -> Path:
        """One JSON document, written whole or not at all."""
        path = Path(path)
        write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False).encode())
        return path

    @classmethod
    def load(cls, path: Path | str) -> Collapse:
        path = Path(path)
        try:
            data = parsed(path.read_text(encoding="utf-8"))
            return cls.from_json(data)
        except FileNotFoundError:
            raise RefusalError(f"There is no file {path}: give the one that `attnscope collapse` wrote.") from None
        except (AttributeError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
            raise RefusalError(f"{path} is no collapse file ({error}): run `attnscope collapse` again.") from error

    def sentences(self) -> tuple[str, ...]:
        """What the numbers say, in plain words."""
        from attnscope.pages.collapse_words import sentences

        return sentences(self.to_json())

    def chart(self, *, published: str | None = None, bounds: bool = False) -> Any:
        """The curves; `published` names a model of the paper to draw beside them, `bounds` adds a panel for them."""
        from attnscope.charts.collapse_curves import collapse_chart
        from attnscope.depth.published import published as curves_of

        reference = None if published is None else curves_of(published, self.weights)
        return collapse_chart(self.to_json(), published=reference, bounds=bounds)

    def write_page(self, path: Path | str, *, published: str | None = None) -> Path:
        """The self-contained HTML page; `published` as in `chart`."""
        from attnscope.depth.published import published as curves_of
        from attnscope.pages.collapse_page import write_collapse

        reference = None if published is None else curves_of(published, self.weights)
        return write_collapse(self.to_json(), path, published=reference)

    def __repr__(self) -> str:
        ends = ", ".join(f"{name} {curve.mean[-1]:.2g}" for name, curve in self.curves.items())
        return f"<Collapse of {self.model}: {self.layers} layers leave {ends}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(curve.title)}</th>" + "".join(f"<td>{value:.3g}</td>" for value in curve.mean) + "</tr>"
            for curve in self.curves.values()
        )
        words = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences())
        head = "".join(f"<th>{depth}</th>" for depth in range(self.layers + 1))
        title = f"<p><b>{escape(self.model)}</b>, relative residual against depth</p>"
        return f"<div>{title}{words}<table><tr><th></th>{head}</tr>{rows}</table></div>"


def _restored(kind: Any, data: Mapping[str, Any]) -> Any:
    """Lists become tuples again, and a null where a number belongs NaN."""
    return kind(**{f.name: _value(data[f.name], str(f.type)) for f in fields(kind)})


def _value(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        inner = kind.removeprefix("tuple[").removesuffix(", ...]")
        return tuple(_value(one, inner) for one in value)
    return math.nan if value is None and kind == "float" else value
