"""The atlas: surveys of real pretrained models, condensed to one number for each head or depth.

    atlas = attnscope.atlas()                     # the one in the package
    atlas.entries[0].name, atlas.entries[0].family
    atlas.table()                                 # one row for each model and measure

`tools/atlas` makes it. Every model was scanned on text of its own kind with the same settings, and its twin with random
weights too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.scan.survey.readings import largest
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.ranges import NAN, Count, FiniteOrNan, Share, SizeOrNan
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

StackKind = Literal["decoder", "encoder"]
MOST = 1.02  # largest share of a bound; the bound holds for the mean length of the sequences
FIGURES = 4  # significant figures of the numbers that are kept


@dataclass(frozen=True)
class Grid:
    """The means of one measure in one stack: rows are blocks (or depths), columns are heads (one for the stream)."""

    measure: str
    part: str
    site: str
    means: tuple[tuple[FiniteOrNan, ...], ...]

    @property
    def values(self) -> NDArray[np.float64]:
        """The finite means of all places."""
        every: NDArray[np.float64] = np.array([value for row in self.means for value in row], dtype=float)
        finite: NDArray[np.float64] = every[np.isfinite(every)]
        return finite


@dataclass(frozen=True)
class EntryStack:
    """One stack of blocks of a model."""

    name: str
    kind: StackKind
    layers: Count
    heads: Count
    grids: tuple[Grid, ...]

    def grid(self, measure: str, part: str, site: str) -> Grid | None:
        return next((g for g in self.grids if (g.measure, g.part, g.site) == (measure, part, site)), None)


@dataclass(frozen=True)
class Shape:
    """The blocks and heads of every stack, and the number of parameters."""

    stacks: tuple[tuple[int, int], ...]
    parameters: int


@dataclass(frozen=True, repr=False)
class Entry:
    """One real checkpoint. `twin` holds the stacks of the same architecture with random weights."""

    name: str
    family: str
    domain: str
    licence: str
    source: str  # package and version
    text: str  # what it read
    hash: str
    parameters: Count
    stacks: tuple[EntryStack, ...]
    twin: tuple[EntryStack, ...] = ()
    loss: SizeOrNan = math.nan  # nats per predicted token
    unigram: SizeOrNan = math.nan
    bits_per_byte: SizeOrNan = math.nan
    findings: tuple[tuple[str, str], ...] = ()  # kind and severity, judged by the other models
    inside: Annotated[Share, NAN] = math.nan  # share of its numbers in the usual range of the other models

    @property
    def shape(self) -> Shape:
        return Shape(tuple((stack.layers, stack.heads) for stack in self.stacks), self.parameters)

    def __repr__(self) -> str:
        return f"<Entry {self.name}: {self.family}, {self.parameters:,} parameters>"


@dataclass(frozen=True, repr=False)
class Atlas(Record):
    """All entries, in the order of their families."""

    KIND: ClassVar[str] = "atlas"
    COMMAND: ClassVar[str] = "atlas"
    FILE: ClassVar[str] = "atlas.json"
    INDENT: ClassVar[int | None] = None

    entries: tuple[Entry, ...]
    settings: dict[str, Any] = field(default_factory=dict)  # of the scans
    attnscope: str = ""

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.family for entry in self.entries))

    def __getitem__(self, name: str) -> Entry:
        """Return the entry of a model by its name."""
        known = {entry.name: entry for entry in self.entries}
        if name not in known:
            raise RefusalError(f"The atlas has no model '{name}'.{nearest(name, known)}")
        return known[name]

    def table(self) -> pandas.DataFrame:
        """Return one row for each model, stack, measure, part and site: median and 5% to 95% over its places."""
        import pandas

        rows = [
            (entry.name, entry.family, stack.name, stack.kind, grid.measure, grid.part, grid.site, *_quantiles(grid))
            for entry in self.entries
            for stack in entry.stacks
            for grid in stack.grids
        ]
        names = ("model", "family", "stack", "kind", "measure", "part", "site", "p5", "p50", "p95")
        return pandas.DataFrame(rows, columns=list(names))

    def __repr__(self) -> str:
        return f"<Atlas of {len(self.entries)} models of {len(self.families)} families>"


def _quantiles(grid: Grid) -> tuple[float, ...]:
    values = grid.values
    return tuple(np.quantile(values, (0.05, 0.5, 0.95)).tolist()) if len(values) else (math.nan,) * 3


def shape_of(survey: Survey) -> Shape:
    """Return the shape of the model of a survey."""
    model = survey.provenance.get("model", {})
    described = [stack for stack in model.get("stacks", []) if stack.get("name") in survey.stacks]
    sizes = tuple((_whole(stack.get("layers")), _whole(stack.get("heads"))) for stack in described)
    return Shape(sizes, _whole(model.get("parameters")))


def _whole(value: object) -> int:
    """Return a number of the provenance, or 0 if it is unknown."""
    return value if isinstance(value, int) else 0


def stacks_of(survey: Survey) -> tuple[EntryStack, ...]:
    """Condense a survey: the mean of every measure at every head or depth, and what parts write and their slopes."""
    described = {s["name"]: s for s in survey.provenance.get("model", {}).get("stacks", [])}
    return tuple(
        EntryStack(
            name,
            "decoder" if described.get(name, {}).get("causal") else "encoder",
            _whole(described.get(name, {}).get("layers")),
            _whole(described.get(name, {}).get("heads")),
            (*_measured(survey, name), *_tried(survey, name)),
        )
        for name in survey.stacks
    )


def _measured(survey: Survey, stack: str) -> list[Grid]:
    found = []
    for name, card in survey.cards.items():
        for part in card.parts:
            for place, site in survey.places(name, part):
                if place == stack:
                    means = np.atleast_2d(survey.values(name, part, stack, site).T).T
                    shares = means / bound_of(survey, name, stack, site)
                    # Sequences of very different lengths have no one largest value.
                    if card.bound is None or not np.nanmax(shares, initial=0.0) > MOST:
                        found.append(Grid(name, part, site, rounded(shares)))
    return found


def bound_of(survey: Survey, measure: str, stack: str, site: str) -> float:
    """Return the largest possible value at this length, for measures that grow with the length; 1 for others.

    Such measures are kept as shares of their bound, which brings texts of other lengths nearer, though not to the same.
    """
    card = survey.cards[measure]
    if card.bound is None:
        return 1.0
    return largest(survey, card, stack, site) or math.nan


def _tried(survey: Survey, stack: str) -> list[Grid]:
    """Return what halves of blocks write, and their slopes, as measures called `write` and `slope`."""
    parts = [] if survey.trial is None else [part for part in survey.trial.parts if part.stack == stack]
    found = []
    for half in ("attention", "mlp"):
        own = [part for part in parts if part.half == half]
        if own:
            found.append(Grid("write", half, "self", rounded(np.array([[part.write] for part in own]))))
            found.append(Grid("slope", half, "self", rounded(np.array([[part.slope] for part in own]))))
    return found


def rounded(means: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """Return the numbers with a few significant figures, NaN where nothing is finite."""
    return tuple(
        tuple(float(f"{value:.{FIGURES}g}") if math.isfinite(value) else math.nan for value in row)
        for row in means.tolist()
    )


def entry_of(survey: Survey, twin: Survey | None, facts: Mapping[str, str]) -> Entry:
    """Return the entry of a model, from its survey, that of its twin, and facts about it."""
    model, trial = survey.provenance.get("model", {}), survey.trial
    known = trial is not None and bool(trial.loss)
    return Entry(
        name=facts["name"],
        family=facts["family"],
        domain=facts["domain"],
        licence=facts["licence"],
        source=facts["source"],
        text=facts["text"],
        hash=str(model.get("hash", "")),
        parameters=_whole(model.get("parameters")),
        stacks=stacks_of(survey),
        twin=() if twin is None else stacks_of(twin),
        loss=trial.mean_loss if trial is not None and known else math.nan,
        unigram=trial.unigram if trial is not None and known else math.nan,
        bits_per_byte=trial.bits_per_byte if trial is not None and known else math.nan,
    )
