"""A survey: the statistics of a model over a corpus, by measure, place and head.

    survey = Survey.load("out/survey.json")
    survey.table()                      a tidy pandas frame
    survey.values("entropy")            means as an array [blocks, heads]
    survey.histogram("entropy", 3, 0)   the distribution over sequences for block 3, head 0
    survey | other_shard                exactly the survey of both shards

It holds the cards of its measures, so it explains itself without torch or the model.
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
from attnscope.commands.scan.survey.trial import Trial
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
    """Cells hold the numbers, cards say what they mean, and provenance says where they come from."""

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
    sequences: Sequences = field(default_factory=dict)  # token ids of the same sequences
    trial: Trial | None = None  # interventions on a few windows; None if they were not tried

    @classmethod
    def empty(cls, provenance: Mapping[str, Any], cards: Mapping[str, Card]) -> Survey:
        return cls(plain(provenance), dict(sorted(cards.items())), {})

    def merge(self, other: Survey) -> Survey:
        """Return the survey of both corpora, equal to the last bit in any order of merging."""
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
                    f"The surveys have {mine.shape} and {cell.shape} heads at {key.stack} {key.site} block"
                    f" {key.layer} and cannot be merged: scan the same model."
                )
            cells[key] = cell if mine is None else join(self.cards[key.measure], mine, cell)
        provenance = merge_provenance(self.provenance, other.provenance)
        # Two corpora may use one number for different sequences. Then it does not matter which text is kept (see
        # `evidence`).
        texts = {
            n: min(s.excerpts[n] for s in (self, other) if n in s.excerpts) for n in {*self.excerpts, *other.excerpts}
        }
        owners = {n: self if self.excerpts.get(n) == text else other for n, text in texts.items()}
        kept = {n: owner.sequences[n] for n, owner in sorted(owners.items()) if n in owner.sequences}
        trials = {survey.trial for survey in (self, other) if survey.trial is not None}
        trial = trials.pop() if len(trials) == 1 else None  # trials of different corpora are not joined
        return Survey(provenance, self.cards, dict(sorted(cells.items())), dict(sorted(texts.items())), kept, trial)

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
        """Return one row for each measure, part, place and head."""
        return table(self)

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks, in the model's order if provenance has it."""
        seen = {key.stack for key in self.cells}
        known = [s["name"] for s in self.provenance.get("model", {}).get("stacks", []) if s["name"] in seen]
        return (*known, *sorted(seen.difference(known)))

    def kind_of_block(self, stack: str, layer: int) -> str | None:
        """Return what a block has instead of attention (`Mamba`), or None if it attends."""
        for described in self.provenance.get("model", {}).get("stacks", []):
            if described["name"] == stack:
                kind = described.get("kinds", {}).get(str(layer))
                return None if kind is None else str(kind)
        return None

    def places(self, measure: str, part: str = "value") -> tuple[tuple[str, str], ...]:
        """Return the (stack, site) pairs at which a measure was taken: stacks in order, sites in the card's order."""
        seen = {(key.stack, key.site) for key in self.cells if key[:2] == (measure, part)}
        sites = self.cards[measure].sites if measure in self.cards else ()
        order = {site: n for n, site in enumerate(sites)}
        stacks = {stack: n for n, stack in enumerate(self.stacks)}
        return tuple(sorted(seen, key=lambda p: (stacks[p[0]], order.get(p[1], len(order)), p[1])))

    def column(self, measure: str, part: str, stack: str, site: str) -> dict[int, Cell]:
        """Return the cells of one measure by block, in order."""
        cells = {k.layer: c for k, c in self.cells.items() if k[:4] == (measure, part, stack, site)}
        return dict(sorted(cells.items()))

    def values(
        self, measure: str, part: str = "value", stack: str | None = None, site: str | None = None
    ) -> NDArray[np.float64]:
        """Return means as [blocks] or [blocks, heads], NaN where nothing was measured.

        `site` defaults to the first one of the card; `stack` may be omitted if there is only one.
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
        """Return the distribution over sequences at one place: `edges` and `counts`, in bins within 1/64 of their
        value.

        Surveys have the same bins, so `a.histogram(...).merge(b.histogram(...))` is the histogram of `a | b` (except
        for weights, which count once however many shards read them).
        """
        column = self._column(measure, part, stack, site)
        if layer not in column:
            raise RefusalError(f"'{measure}' was not measured at block {layer}: it is at {blocks(column)}.")
        cell = column[layer]
        if not cell.shape and head is not None:
            raise RefusalError(f"'{measure}' has one number per block, not per head: leave head= out.")
        if cell.shape and head not in range(cell.shape[0]):
            raise RefusalError(
                f"'{measure}' has numbers for {count(cell.shape[0], 'head')}: choose one with head=, counted from 0."
            )
        return cell.sketch.histogram(head or 0)

    def _column(self, measure: str, part: str, stack: str | None, site: str | None) -> dict[int, Cell]:
        """Return the column that fits the arguments, or refuse and list the columns that exist."""
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
    """Return the means of a column, row b for block b. Blocks with fewer heads are padded with NaN."""
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


PLACE = ("measure", "part", "stack", "site", "layer", "head")
NUMBERS = ("count", "mean", "std", "min", "max", "p10", "p50", "p90", "nonfinite", "peak")
COLUMNS = (*PLACE, *NUMBERS, "peak_where", "usual")


def table(survey: Survey) -> pandas.DataFrame:
    """Return the table; `head` is <NA> for stream measures, `usual` is the most common token, channel or key."""
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
    types = {name: "float64" if name in NUMBERS else "object" for name in COLUMNS} | dict.fromkeys(PLACE[:4], "str")
    types |= {"layer": "int64", "head": "Int64", "count": "int64", "nonfinite": "int64"}
    return pandas.DataFrame({name: pandas.Series(v, dtype=types[name]) for name, v in columns.items()})


def _numbers(cell: Cell) -> dict[str, Any]:
    """Return the numbers of a cell; NaN if no value is finite."""
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
