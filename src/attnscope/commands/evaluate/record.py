"""Which explanation is true to this model: what `explain --evaluate` found.

    found.methods[0].name                          the most faithful, by how far its two areas are apart
    found.difference("relevance", "random")        that of two methods on the same texts, with its interval
    found.comparisons()                            all differences with intervals that hold together
    found.ranks()["relevance"]                     (2, 4): surely behind one method, surely before the fifth
    found.table(), found.chart(), found.sentences()

Areas are under the answer while tokens are taken away, as a share of the whole answer: `positive` with the most
important first (small is good), `negative` with the least important first (large is good). `gap` is negative less
positive, `soft_gap` the same with tokens kept in part: what is lost without them less what is lost with them alone. An
order that is drawn at random has 0 on average, of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.record import Record
from attnscope.stats.intervals import bootstrap_mean, simultaneous_differences

if TYPE_CHECKING:
    import pandas

ESTIMATES = (
    *("gap", "positive", "negative", "comprehensiveness", "sufficiency"),
    *("soft_gap", "soft_comprehensiveness", "soft_sufficiency"),
)
ENOUGH_DOCUMENTS = 6  # of fewer, all speak for one method in more than 5 of 100 draws of signs
By = Literal["gap", "soft_gap"]


@dataclass(frozen=True)
class Estimate:
    """A mean over texts and its 95% interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: tuple[float, ...], documents: tuple[int, ...] | None = None) -> Estimate:
        """Bootstrap the mean; `documents` gives the document of every text, and texts of one are drawn together."""
        return cls(*bootstrap_mean(values, groups=documents))

    @property
    def sure(self) -> bool:
        """Return whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """How much more faithful `one` is than `other`, with an interval that holds together with those of all pairs."""

    one: str
    other: str
    mean: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Judged:
    """One method over all texts; `gaps` and `soft_gaps` are those of the single texts, in their order. `falling` and
    `staying` are the mean answer while tokens go, the most and the least important first."""

    name: str
    title: str
    group: str
    gap: Estimate
    positive: Estimate
    negative: Estimate
    comprehensiveness: Estimate
    sufficiency: Estimate
    soft_gap: Estimate
    soft_comprehensiveness: Estimate
    soft_sufficiency: Estimate
    seconds: float  # for one text
    gaps: tuple[float, ...]
    soft_gaps: tuple[float, ...]
    falling: tuple[float, ...]
    staying: tuple[float, ...]

    def single(self, by: By) -> tuple[float, ...]:
        """Return the numbers of all texts."""
        return self.gaps if by == "gap" else self.soft_gaps


@dataclass(frozen=True, repr=False)
class Faithfulness(Record):
    """Methods on one model and corpus, the most faithful first."""

    KIND: ClassVar[str] = "faithfulness"
    COMMAND: ClassVar[str] = "explain --evaluate"
    FILE: ClassVar[str] = "faithfulness.json"

    model: str
    class_name: str
    corpus: str
    texts: int
    tokens: int  # of all texts together
    answer: str  # what is followed while tokens go, in words
    baseline: str
    dtype: str
    methods: tuple[Judged, ...]
    documents: tuple[int, ...]  # which document each text was cut from
    accuracy: Estimate | None = None  # of the model on these texts, where their classes are known
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def method(self, name: str) -> Judged:
        found = next((one for one in self.methods if one.name == name), None)
        if found is None:
            raise RefusalError(f"'{name}' was not evaluated.{nearest(name, [one.name for one in self.methods])}")
        return found

    @property
    def drawn_together(self) -> tuple[int, ...] | None:
        """Return the documents, or None where texts are drawn one by one."""
        return drawn_together(self.documents)

    @property
    def too_few_documents(self) -> bool:
        """Return whether there are two to five documents: too few, as texts of one document are alike.

        With a single document, intervals are for other stretches of it.
        """
        return self.drawn_together is not None and len(set(self.documents)) < ENOUGH_DOCUMENTS

    def difference(self, one: str, other: str, by: By = "gap") -> Estimate:
        """Return how much wider the gap of `one` is, text by text.

        The interval is for one question that was asked before seeing the data; `comparisons` is for many.
        """
        pairs = zip(self.method(one).single(by), self.method(other).single(by), strict=True)
        found = Estimate.of(tuple(a - b for a, b in pairs), self.drawn_together)
        return Estimate(found.mean, -inf, inf) if self.too_few_documents else found

    def comparisons(self, by: By = "gap") -> tuple[Difference, ...]:
        """Compare every two methods, the better one first; all intervals hold together with 95% confidence."""
        return self._gap_comparisons if by == "gap" else self._soft_comparisons

    @cached_property
    def _gap_comparisons(self) -> tuple[Difference, ...]:
        return self._compared("gap")

    @cached_property
    def _soft_comparisons(self) -> tuple[Difference, ...]:
        return self._compared("soft_gap")

    def _compared(self, by: By) -> tuple[Difference, ...]:
        apart, reach = simultaneous_differences([one.single(by) for one in self.methods], groups=self.drawn_together)
        found = []
        for pair in combinations(range(len(self.methods)), 2):
            a, b = pair if apart[pair] >= 0 else pair[::-1]
            mean, off = float(apart[a, b]), float(reach[a, b])
            found.append(Difference(self.methods[a].name, self.methods[b].name, mean, mean - off, mean + off))
        return tuple(found)

    def real(self, one: str, other: str, by: By = "gap") -> bool:
        """Return whether `one` is surely more faithful than `other`, all comparisons considered."""
        self.method(one), self.method(other)
        return any((each.one, each.other) == (one, other) and each.real for each in self.comparisons(by))

    def ranks(self, by: By = "gap") -> dict[str, tuple[int, int]]:
        """Return the (best, worst) rank of each method: after all surely better ones, before all surely worse ones."""
        sure = [each for each in self.comparisons(by) if each.real]
        return {
            one.name: (
                1 + sum(each.other == one.name for each in sure),
                len(self.methods) - sum(each.one == one.name for each in sure),
            )
            for one in self.methods
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Faithfulness:
        found = super().from_json(data)
        counts = {len(row) for one in found.methods for row in (one.gaps, one.soft_gaps)} | {len(found.documents)}
        if not found.methods or not found.texts or counts != {found.texts}:
            raise FieldError("methods: a gap and a document for every text are needed")
        if len({one.name for one in found.methods}) < len(found.methods):
            raise FieldError("methods: every method once is needed")
        return found

    def table(self) -> pandas.DataFrame:
        """Return one row for each method."""
        import pandas

        ranks = self.ranks()
        rows = []
        for one in self.methods:
            best, worst = ranks[one.name]
            row: dict[str, Any] = {"method": one.name, "best_rank": best, "worst_rank": worst}
            for name in ESTIMATES:
                estimate: Estimate = getattr(one, name)
                row |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            rows.append({**row, "seconds": one.seconds})
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        return f"<Faithfulness on {self.model}: {len(self.methods)} methods, {self.texts} texts>"


def drawn_together(documents: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the documents that a bootstrap draws as a whole, or None where it draws texts one by one.

    Texts are drawn one by one if each has its own document, or all come from one (then intervals are for other
    stretches of that document).
    """
    several = len(set(documents))
    return documents if 1 < several < len(documents) else None
