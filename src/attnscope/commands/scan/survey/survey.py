"""A survey: what a model did over a corpus, labelled by measure, place and head.

    survey = Survey.load("out/survey.json")
    survey.table()                      a tidy pandas frame
    survey.values("entropy")            means as an array [layers, heads]
    survey.histogram("entropy", 3, 0)   how the sequences spread around the mean of layer 3, head 0
    survey | other_shard                exactly the survey of both shards

It carries the cards of its measures, so it explains itself where neither torch nor the model is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.scan.survey.cell import Cell, Key, join
from attnscope.commands.scan.survey.provenance import (
    STEPS,
    VERSION,
    Excerpts,
    Sequences,
    merge_provenance,
    refuse_strangers,
)
from attnscope.core.card import Card
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.words import blocks, count
from attnscope.reports.record import Record, Step
from attnscope.stats.sketch import Histogram

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Survey(Record):
    """Cards say what the numbers mean, provenance where they come from, cells what they are."""

    KIND: ClassVar[str] = "survey"
    COMMAND: ClassVar[str] = "scan"
    FILE: ClassVar[str] = "survey.json"
    FOLDER: ClassVar[str] = "attnscope.commands.scan"
    VERSION: ClassVar[int] = VERSION
    STEPS: ClassVar[Mapping[int, Step]] = STEPS
    INDENT: ClassVar[int | None] = None

    provenance: dict[str, Any]
    cards: dict[str, Card]
    cells: dict[Key, Cell]
    excerpts: Excerpts = field(default_factory=dict)  # texts of the sequences that findings point at
    sequences: Sequences = field(default_factory=dict)  # and what the model was given of them

    @classmethod
    def empty(cls, provenance: Mapping[str, Any], cards: Mapping[str, Card]) -> Survey:
        return cls(plain(provenance), dict(sorted(cards.items())), {})

    def merge(self, other: Survey) -> Survey:
        """The survey of both corpora together, the same to the last bit whatever the order of merging."""
        refuse_strangers(self.provenance, other.provenance)
        if self.cards != other.cards:
            differ = sorted(n for n in {*self.cards, *other.cards} if self.cards.get(n) != other.cards.get(n))
            raise RefusalError(
                f"The surveys do not share the same measures ({', '.join(differ)}) and cannot be merged:"
                " scan both shards with the same `measures=` and the same version."
            )
        cells = dict(self.cells)
        for key, cell in other.cells.items():
            mine = cells.get(key)
            if mine is not None and mine.shape != cell.shape:
                raise RefusalError(
                    f"The surveys have {mine.shape} and {cell.shape} heads at {key.stack} {key.site} layer"
                    f" {key.layer} and cannot be merged: scan the same model."
                )
            cells[key] = cell if mine is None else join(self.cards[key.measure], mine, cell)
        provenance = merge_provenance(self.provenance, other.provenance)
        # Where two corpora number other sequences alike, either text would do, and none is shown (see `evidence`).
        texts = {
            n: min(s.excerpts[n] for s in (self, other) if n in s.excerpts) for n in {*self.excerpts, *other.excerpts}
        }
        given = {
            n: (self if n in self.excerpts and self.excerpts[n] == text else other).sequences
            for n, text in texts.items()
        }
        kept = {n: of[n] for n, of in sorted(given.items()) if n in of}
        return Survey(provenance, self.cards, dict(sorted(cells.items())), dict(sorted(texts.items())), kept)

    def __or__(self, other: object) -> Survey:
        return self.merge(other) if isinstance(other, Survey) else NotImplemented

    def to_json(self) -> dict[str, Any]:
        from attnscope.commands.scan.survey.file import to_json

        return {"format": "attnscope-survey", "version": self.VERSION, **to_json(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Survey:
        from attnscope.commands.scan.survey.file import from_json

        return from_json(data)

    def page_name(self, file: Path) -> str:
        return "report.html" if file.name.startswith("survey.json") else super().page_name(file)

    def table(self) -> pandas.DataFrame:
        """One row for each measure, part, place and head."""

        return table(self)

    @property
    def stacks(self) -> tuple[str, ...]:
        """Names of the stacks of blocks, in the model's order where provenance tells it."""
        seen = {key.stack for key in self.cells}
        told = [s["name"] for s in self.provenance.get("model", {}).get("stacks", []) if s["name"] in seen]
        return (*told, *sorted(seen.difference(told)))

    def kind_of_block(self, stack: str, layer: int) -> str | None:
        """What stands in attention's place in a block that has none (`Mamba`); None where it attends."""
        for described in self.provenance.get("model", {}).get("stacks", []):
            if described["name"] == stack:
                kind = described.get("kinds", {}).get(str(layer))
                return None if kind is None else str(kind)
        return None

    def places(self, measure: str, part: str = "value") -> tuple[tuple[str, str], ...]:
        """The (stack, site) pairs at which a measure was taken: stacks in order, sites in the card's order."""
        seen = {(key.stack, key.site) for key in self.cells if key[:2] == (measure, part)}
        sites = self.cards[measure].sites if measure in self.cards else ()
        order = {site: n for n, site in enumerate(sites)}
        stacks = {stack: n for n, stack in enumerate(self.stacks)}
        return tuple(sorted(seen, key=lambda p: (stacks[p[0]], order.get(p[1], len(order)), p[1])))

    def column(self, measure: str, part: str, stack: str, site: str) -> dict[int, Cell]:
        """The cells of one measure from the first layer to the last."""
        found = {k.layer: c for k, c in self.cells.items() if k[:4] == (measure, part, stack, site)}
        return dict(sorted(found.items()))

    def values(
        self, measure: str, part: str = "value", stack: str | None = None, site: str | None = None
    ) -> NDArray[np.float64]:
        """Means as [layers] or [layers, heads], row l being layer l; NaN where nothing was measured.

        Without `site` the first one of the card is read; `stack` may be left out where there is only one.
        """
        return stack_means(self._column(measure, part, stack, site))

    def histogram(
        self,
        measure: str,
        layer: int,
        head: int | None = None,
        part: str = "value",
        stack: str | None = None,
        site: str | None = None,
    ) -> Histogram:
        """How often a sequence gave which value at one place: `edges` and `counts`, in bins within 1/64 of their value.

        Bins are the same in every survey, so `a.histogram(...).merge(b.histogram(...))` is that of `a | b` (weights,
        which count once however many shards read them, aside).
        """
        column = self._column(measure, part, stack, site)
        if layer not in column:
            raise RefusalError(f"'{measure}' was not measured at block {layer}: it is at {blocks(column)}.")
        cell = column[layer]
        if not cell.shape and head is not None:
            raise RefusalError(f"'{measure}' has one number a layer and none for each head: leave head= out.")
        if cell.shape and head not in range(cell.shape[0]):
            raise RefusalError(f"'{measure}' is there for {count(cell.shape[0], 'head')}: say which, from head=0 on.")
        return cell.sketch.histogram(head or 0)

    def _column(self, measure: str, part: str, stack: str | None, site: str | None) -> dict[int, Cell]:
        """The one column that these words mean, or a refusal that says which there are."""
        if measure not in self.cards:
            raise RefusalError(f"This survey has no measure '{measure}'.{nearest(measure, self.cards)}")
        if part not in self.cards[measure].parts:
            raise RefusalError(
                f"The measure '{measure}' has no part '{part}'.{nearest(part, self.cards[measure].parts)}"
            )
        places = self.places(measure, part)
        stacks = tuple(dict.fromkeys(s for s, _ in places))
        if stack is None and len(stacks) > 1:
            raise RefusalError(f"'{measure}' was measured in {' and '.join(stacks)}: say which with stack=.")
        fits = [p for p in places if stack in (None, p[0]) and site in (None, p[1])]
        if not fits:
            wanted = " ".join(w for w in (stack, site) if w)
            known = ", ".join(f"{s} {t}" for s, t in places) or "nowhere"
            raise RefusalError(f"'{measure}' was not measured at {wanted or 'any place'}: it is at {known}.")
        return self.column(measure, part, *fits[0])

    def __repr__(self) -> str:
        model = self.provenance.get("model", {}).get("name", "unnamed model")
        corpus = self.provenance.get("corpus", {})
        return (
            f"Survey({model}, {corpus.get('sequences', 0)} sequences, {corpus.get('tokens', 0)} tokens,"
            f" {len(self.cards)} measures, {len(self.cells)} cells)"
        )


def stack_means(column: Mapping[int, Cell]) -> NDArray[np.float64]:
    """Means of the cells of a column, row l for layer l. Layers with fewer heads are filled up with NaN."""
    depth = max(column, default=-1) + 1
    shapes = {cell.shape for cell in column.values()}
    width = max((shape[0] for shape in shapes if shape), default=0)
    means = np.full((depth, width) if width else (depth,), np.nan)
    for layer, cell in column.items():
        if width:
            means[layer, : cell.shape[0]] = cell.moments.mean
        else:
            means[layer] = cell.moments.mean
    return means


# A survey as a tidy pandas frame: one row for each measure, part, place and head.

PLACE = ("measure", "part", "stack", "site", "layer", "head")
NUMBERS = ("count", "mean", "std", "min", "max", "p10", "p50", "p90", "nonfinite", "peak")
COLUMNS = (*PLACE, *NUMBERS, "peak_where", "usual")


def table(survey: Survey) -> pandas.DataFrame:
    """`head` is <NA> for stream measures; `usual` holds the most common token, channel or key of a located value."""
    import pandas

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for key, cell in survey.cells.items():
        heads = math.prod(cell.shape)
        for name, value in zip(PLACE[:-1], key, strict=True):
            columns[name] += [value] * heads
        columns["head"] += list(range(heads)) if cell.shape else [None]
        for name, numbers in _numbers(cell).items():
            columns[name] += np.ravel(numbers).tolist()
        columns["peak_where"] += cell.peak.places()
        columns["usual"] += cell.usual()
    text = dict.fromkeys(PLACE[:4], "str")
    return pandas.DataFrame(
        {
            name: pandas.Series(
                values,
                dtype=text.get(name)
                or {"layer": "int64", "head": "Int64", "count": "int64", "nonfinite": "int64"}.get(name)
                or ("float64" if name in NUMBERS else "object"),
            )
            for name, values in columns.items()
        }
    )


def _numbers(cell: Cell) -> dict[str, Any]:
    """NaN where nothing finite was seen."""
    seen = cell.moments.count > 0
    return {
        "count": cell.moments.count,
        "mean": cell.moments.mean,
        "std": cell.moments.std,
        "min": np.where(seen, cell.moments.minimum, np.nan),
        "max": np.where(seen, cell.moments.maximum, np.nan),
        "p10": cell.quantile(0.1),
        "p50": cell.quantile(0.5),
        "p90": cell.quantile(0.9),
        "nonfinite": cell.moments.nonfinite,
        "peak": np.where(seen, cell.peak.value, np.nan),
    }
