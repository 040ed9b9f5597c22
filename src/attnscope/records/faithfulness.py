"""Which explanation is true to this model: what `explain --evaluate` found.

    found.methods[0].name                          the most faithful, by how far its two areas are apart
    found.difference("relevance", "random")        that of two methods on the same texts, with its interval
    found.table(), found.chart(), found.sentences()

Areas are under the answer while tokens are taken away, as a share of the whole answer: `positive` with the most
important first (small is good), `negative` with the least important first (large is good). `gap` is negative less
positive; a method that knows nothing has 0 on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.core.errors import RefusalError, nearest
from attnscope.records.decoding import FieldError
from attnscope.records.record import Record
from attnscope.stats.bootstrap import bootstrap_mean

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Estimate:
    """A mean over texts and its 95% interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: tuple[float, ...]) -> Estimate:
        return cls(*bootstrap_mean(values))

    @property
    def sure(self) -> bool:
        """Whether zero is outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Judged:
    """One method over all texts; `gaps` are those of the single texts, in their order."""

    name: str
    title: str
    group: str
    gap: Estimate
    positive: Estimate
    negative: Estimate
    comprehensiveness: Estimate
    sufficiency: Estimate
    seconds: float  # for one text
    gaps: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Faithfulness(Record):
    """Methods on one model and corpus, the most faithful first."""

    KIND: ClassVar[str] = "faithfulness"
    COMMAND: ClassVar[str] = "explain --evaluate"

    model: str
    class_name: str
    corpus: str
    texts: int
    tokens: int  # of all texts together
    answer: str  # what is followed while tokens go, in words
    baseline: str
    dtype: str
    methods: tuple[Judged, ...]
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def method(self, name: str) -> Judged:
        found = next((one for one in self.methods if one.name == name), None)
        if found is None:
            raise RefusalError(f"'{name}' was not evaluated.{nearest(name, [one.name for one in self.methods])}")
        return found

    def difference(self, one: str, other: str) -> Estimate:
        """How much wider the gap of `one` is, text by text: what makes a text hard is the same for both."""
        pairs = zip(self.method(one).gaps, self.method(other).gaps, strict=True)
        return Estimate.of(tuple(a - b for a, b in pairs))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Faithfulness:
        found = super().from_json(data)
        if not found.methods or any(not one.gaps or len(one.gaps) != found.texts for one in found.methods):
            raise FieldError("methods: a gap for every text is needed")
        if len({one.name for one in found.methods}) < len(found.methods):
            raise FieldError("methods: every method once is needed")
        return found

    def table(self) -> pandas.DataFrame:
        """One row for each method."""
        import pandas

        fields = ("gap", "positive", "negative", "comprehensiveness", "sufficiency")
        rows = []
        for one in self.methods:
            row: dict[str, Any] = {"method": one.name}
            for name in fields:
                estimate: Estimate = getattr(one, name)
                row |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            rows.append({**row, "seconds": one.seconds})
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        return f"<Faithfulness on {self.model}: {len(self.methods)} methods, {self.texts} texts>"
