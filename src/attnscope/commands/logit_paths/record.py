"""The record of `logit_paths`: one attention logit as a sum over what both of its sides read.

report.weight, report.logit          the attention weight and the logit of the pair of tokens
report.lead                          the logit minus the mean logit of the other visible keys
report.sources[3].key_lead           what source 3 adds to the lead on the side of the key
report.terms[0]                      the largest single term: a source of the query with a source of the key
report.removed[0].weight             the weight after one source is taken out of what the head reads
report.save("logit_paths.json"); LogitReport.load("logit_paths.json")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attnscope.core.decoding import FieldError
from attnscope.core.ranges import Count, Finite, Index, Positive, Probability, Provenance, Size, adds_up
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

Side = Literal["query", "key"]


@dataclass(frozen=True)
class SourceRow:
    """Something that wrote into the stream, and what it adds on each side, summed over the other side.

    `biases` holds biases and shifts of norms, also those of the block itself. The query side of all sources adds up to
    the logit (without position bias), and so does the key side.
    """

    kind: Literal["embedding", "biases", "head", "mlp"]
    block: Index | None
    head: Index | None
    query_logit: Finite
    key_logit: Finite
    query_lead: Finite
    key_lead: Finite


@dataclass(frozen=True)
class Term:
    """One product: a source of the query (its number in `sources`) with a source of the key."""

    query: Index
    key: Index
    logit: Finite
    lead: Finite


@dataclass(frozen=True)
class Grid:
    """The lead as a table of query-side by key-side sources. The last row and column sum all other sources."""

    query: tuple[Index, ...]
    key: tuple[Index, ...]
    lead: tuple[tuple[Finite, ...], ...]


@dataclass(frozen=True)
class Removed:
    """The weight after one source is taken out of what the query, or the key, of this head is computed from."""

    side: Side
    source: Index
    weight: Probability


@dataclass(frozen=True, repr=False)
class LogitReport(Record):
    """The decomposition of one attention logit of one head on one text."""

    KIND: ClassVar[str] = "logit_paths"
    COMMAND: ClassVar[str] = "paths MODEL TEXT --head B.H"
    FILE: ClassVar[str] = "logit_paths.json"
    INDENT: ClassVar[int | None] = None

    model: str
    class_name: str
    stack: str
    text: str
    tokens: tuple[str, ...]
    block: Index
    head: Index
    query: Index
    key: Index
    dtype: str
    weights: tuple[Probability, ...]  # of the query's row, one for each token
    logit: Finite  # before a cap, position bias included
    lead: Finite
    others: Count  # other keys that the query sees
    bias: Finite  # position bias in the logit
    bias_lead: Finite
    softcap: Positive | None  # logits are capped at this size after the sum
    sources: tuple[SourceRow, ...]
    terms: tuple[Term, ...]
    grid: Grid
    removed: tuple[Removed, ...]
    difference: Size  # of the sum of all terms from the model's own logit
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)

    @property
    def weight(self) -> float:
        return self.weights[self.key]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogitReport:
        """Read what `to_json` returned; raise a `FieldError` for wrong fields and sums."""
        found = super().from_json(data)
        for name in ("query", "key"):
            if getattr(found, name) >= len(found.tokens):
                raise FieldError(f"{name}: one of {len(found.tokens)} tokens is needed")
        if len(found.weights) != len(found.tokens):
            raise FieldError("weights: one for each token is needed")
        for side in ("query", "key"):
            for total, bias in (("logit", "bias"), ("lead", "bias_lead")):
                parts = [getattr(source, f"{side}_{total}") for source in found.sources]
                if not adds_up((*parts, getattr(found, bias)), getattr(found, total)):
                    raise FieldError(f"sources: the {side} side has to sum to {total}")
        numbers = [term.query for term in found.terms] + [term.key for term in found.terms]
        numbers += [*found.grid.query, *found.grid.key, *(one.source for one in found.removed)]
        if any(number >= len(found.sources) for number in numbers):
            raise FieldError(f"terms: numbers of the {len(found.sources)} sources are needed")
        found._check_grid()
        return found

    def _check_grid(self) -> None:
        grid = self.grid
        if len(grid.lead) != len(grid.query) + 1 or any(len(row) != len(grid.key) + 1 for row in grid.lead):
            raise FieldError("grid.lead: a row and a column for each source, and for all others, are needed")
        if not adds_up((*(value for row in grid.lead for value in row), self.bias_lead), self.lead):
            raise FieldError("grid.lead: numbers that sum to lead are needed")

    def table(self) -> pandas.DataFrame:
        """Return one row for each source: what it adds on each side, and the weight without it where it was removed."""
        import pandas

        without = {(one.source, one.side): one.weight for one in self.removed}
        fields = ("kind", "block", "head", "query_logit", "key_logit", "query_lead", "key_lead")
        return pandas.DataFrame(
            [
                {name: getattr(source, name) for name in fields}
                | {f"weight_without_{side}": without.get((number, side)) for side in ("query", "key")}
                for number, source in enumerate(self.sources)
            ]
        )

    def __repr__(self) -> str:
        return (
            f"<LogitReport of {self.model}: block {self.block} head {self.head}, token {self.query} to {self.key}, "
            f"logit {self.logit:.4g}>"
        )
