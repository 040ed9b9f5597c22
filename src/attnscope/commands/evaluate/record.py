"""The record of `explain --evaluate`: how faithful each explanation is to a model.

    found.methods[0].name                          the most faithful method, which has the widest gap
    found.difference("relevance", "random")        the difference of two gaps on the same texts, with its interval
    found.comparisons()                            all differences, with simultaneous intervals
    found.ranks()["relevance"]                     (2, 4): one method is surely better, the fifth is surely worse
    found.table(), found.chart(), found.sentences()

`positive` and `negative` are areas under the answer while tokens are removed, as a share of the original answer:
`positive` with the most important first (small is good), `negative` with the least important first (large is good).
`gap` is negative minus positive. `soft_gap` keeps tokens in part: the loss without the important tokens minus the loss
with only these. `log_gap` is the gap of log probabilities. A random order has a mean of 0 for all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import inf, isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.ranges import INFINITE, AsMany, AtLeast, Count, Finite, Provenance, Several, Size, adds_up, slack
from attnscope.reports.record import Record
from attnscope.stats.intervals import bootstrap_mean, fewest, simultaneous_differences

if TYPE_CHECKING:
    import pandas

ESTIMATES = (
    *("gap", "positive", "negative", "comprehensiveness", "sufficiency"),
    *("soft_gap", "soft_comprehensiveness", "soft_sufficiency"),
)
NOTICEABLE = 0.01  # of the answer: smaller differences are decided by one text in thirty, which a sample may lack
By = Literal["gap", "soft_gap", "log_gap"]


@dataclass(frozen=True)
class Estimate:
    """A mean over texts and its 95% interval."""

    mean: Annotated[Finite, AtLeast("low")]
    low: Annotated[Finite, INFINITE]
    high: Annotated[Finite, INFINITE, AtLeast("mean")]

    @classmethod
    def of(
        cls,
        values: tuple[float, ...],
        documents: tuple[int, ...] | None = None,
        within: tuple[float, float] = (-inf, inf),
    ) -> Estimate:
        """Bootstrap the mean. `documents` is the document of every text; texts of one document are drawn together.

        No number is outside `within`, so its mean is not either.
        """
        mean, low, high = bootstrap_mean(values, groups=documents)
        return cls(mean, min(max(low, within[0]), mean), max(min(high, within[1]), mean))

    @property
    def sure(self) -> bool:
        """Return whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """The gap of `one` minus the gap of `other`, with an interval that is simultaneous over all pairs."""

    one: str
    other: str
    mean: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """Return whether the interval excludes zero, and the difference is large enough to matter."""
        return (self.low > 0 or self.high < 0) and abs(self.mean) >= NOTICEABLE


@dataclass(frozen=True)
class Judged:
    """One method over all texts.

    `gaps` and `soft_gaps` have a number for each text. `falling` and `staying` are the mean answer while tokens are
    removed, the most important first and the least important first.
    """

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
    seconds: Size  # for one text
    gaps: tuple[Finite, ...]
    soft_gaps: Annotated[tuple[Finite, ...], AsMany("gaps")]
    falling: tuple[Finite, ...]
    staying: Annotated[tuple[Finite, ...], AsMany("falling")]
    log_gap: Estimate | None = None  # of log probabilities, in nats; None if the answer is not a probability
    log_gaps: tuple[Finite, ...] = ()
    own_test: bool = False  # whether the judge replaces tokens as this method does, which favours it

    def single(self, by: By) -> tuple[float, ...]:
        """Return the gap, the soft gap or the log gap of every text."""
        return {"gap": self.gaps, "soft_gap": self.soft_gaps, "log_gap": self.log_gaps}[by]


@dataclass(frozen=True, repr=False)
class Faithfulness(Record):
    """The faithfulness of methods on one model and corpus, the most faithful first."""

    KIND: ClassVar[str] = "faithfulness"
    COMMAND: ClassVar[str] = "explain --evaluate"
    FILE: ClassVar[str] = "faithfulness.json"

    model: str
    class_name: str
    corpus: str
    texts: Several
    tokens: Several  # of all texts together
    answer: str  # the answer that is followed while tokens are removed, in words
    baseline: str
    dtype: str
    methods: tuple[Judged, ...]
    documents: Annotated[tuple[Count, ...], AsMany("texts")]  # which document each text was cut from
    accuracy: Estimate | None = None  # the accuracy of the model on these texts, if their classes are known
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)

    def method(self, name: str) -> Judged:
        names = [method.name for method in self.methods]
        if name not in names:
            raise RefusalError(f"'{name}' was not evaluated.{nearest(name, names)}")
        return self.methods[names.index(name)]

    @property
    def drawn_together(self) -> tuple[int, ...] | None:
        """Return the documents that a bootstrap draws as a whole, or None if it draws single texts."""
        return drawn_together(self.documents)

    @property
    def independent(self) -> int:
        """Return the number of documents, or of texts if all come from one (intervals then describe that document)."""
        return self.texts if self.drawn_together is None else len(set(self.documents))

    @property
    def best(self) -> Judged:
        """Return the method with the widest gap that is neither random nor judged by its own operation."""
        fair = [method for method in self.methods if method.group != "floor" and not method.own_test]
        return next(iter(fair or [method for method in self.methods if method.group != "floor"] or self.methods))

    def difference(self, one: str, other: str, by: By = "gap") -> Estimate:
        """Return the gap of `one` minus the gap of `other`, paired by text.

        The interval holds for one pair that was chosen before seeing the data. Use `comparisons` for several pairs.
        """
        pairs = zip(self.method(one).single(by), self.method(other).single(by), strict=True)
        found = Estimate.of(tuple(a - b for a, b in pairs), self.drawn_together)
        return Estimate(found.mean, -inf, inf) if self.independent < fewest() else found

    def comparisons(self, by: By = "gap") -> tuple[Difference, ...]:
        """Compare every pair of methods, the better one first. The 95% intervals are simultaneous."""
        if by not in self._compared:
            self._compared[by] = self._compare(by)
        return self._compared[by]

    @cached_property
    def _compared(self) -> dict[By, tuple[Difference, ...]]:
        return {}

    def _compare(self, by: By) -> tuple[Difference, ...]:
        apart, reach = simultaneous_differences([one.single(by) for one in self.methods], groups=self.drawn_together)
        found = []
        for pair in combinations(range(len(self.methods)), 2):
            a, b = pair if apart[pair] >= 0 else pair[::-1]
            mean, off = float(apart[a, b]), float(reach[a, b])
            found.append(Difference(self.methods[a].name, self.methods[b].name, mean, mean - off, mean + off))
        return tuple(found)

    def real(self, one: str, other: str, by: By = "gap") -> bool:
        """Return whether `one` is significantly more faithful than `other`, corrected for all comparisons."""
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
            raise FieldError("methods: a method is listed twice")
        for number, method in enumerate(found.methods):
            if len(method.log_gaps) != (found.texts if method.log_gap else 0):
                raise FieldError(f"methods[{number}].log_gaps: a number for every text is needed")
            for name in ("gap", "soft_gap", *(["log_gap"] if method.log_gap else [])):
                single: tuple[float, ...] = getattr(method, f"{name}s")
                if not adds_up((value / found.texts for value in single), getattr(method, name).mean):
                    raise FieldError(f"methods[{number}].{name}.mean: the mean of {name}s is needed")
            _refuse_impossible_shares(method, f"methods[{number}]")
        if found.accuracy is not None and not 0 <= found.accuracy.low <= found.accuracy.high <= 1:
            raise FieldError("accuracy: shares from 0 to 1 are needed")
        return found

    def table(self) -> pandas.DataFrame:
        """Return one row for each method."""
        import pandas

        ranks = self.ranks()
        rows = []
        for method in self.methods:
            best, worst = ranks[method.name]
            row: dict[str, Any] = {"method": method.name, "best_rank": best, "worst_rank": worst}
            for name in ESTIMATES:
                estimate: Estimate = getattr(method, name)
                row |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            row |= {"log_gap": None if method.log_gap is None else method.log_gap.mean}
            rows.append({**row, "own_test": method.own_test, "seconds": method.seconds})
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        return f"<Faithfulness on {self.model}: {len(self.methods)} methods, {self.texts} texts>"


def _refuse_impossible_shares(method: Judged, where: str) -> None:
    """Raise `FieldError` for shares of a probability outside of 0 to 1, and for differences outside of -1 to 1.

    A method has a log gap if the answer is a probability. Other answers can be negative, and older records do not say.
    """
    if method.log_gap is None:
        return
    for name in (*ESTIMATES, "gaps", "soft_gaps", "falling", "staying"):
        found, low = getattr(method, name), -1 if "gap" in name else 0
        numbers = (found.low, found.mean, found.high) if isinstance(found, Estimate) else found
        if not all(low - slack(1.0) <= number <= 1 + slack(1.0) for number in numbers if isfinite(number)):
            raise FieldError(f"{where}.{name}: numbers from {low} to 1 are needed")


def drawn_together(documents: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the documents that a bootstrap draws as a whole, or None if it draws single texts.

    It draws single texts if each has its own document, or all come from one (then intervals are for other
    parts of that document).
    """
    several = len(set(documents))
    return documents if 1 < several < len(documents) else None
