"""How much of a change in a finding is chance: what other text of the same kind might have made of it.

What was drawn at random are texts (documents). Heads are no independent draws: a text that makes one head rest makes
its neighbours rest too, and sequences of one text are alike. So every text is diagnosed by itself in both arms, and
what counts is d_k, by how much the finding differs between the two arms in text k: the number of heads or places it
concerns there, or its number. Over g texts the mean of d_k has Student's interval,

    mean(d) +- t_{g-1, 0.975} sqrt(s^2 / g)

and a change is told from chance where that leaves out zero, on the side of the change. One text says nothing.

Whole numbers need one thing more: over a few texts they are easily all alike, and s = 0 would make a certainty of two
texts in which the same one head crossed the bar. If heads cross the bar one by one, and each way equally often, then d
is a sum of +1 and -1 and its variance is the mean number of crossings, which is at least E|d|. So s^2 is never taken
below the mean of |d|. Where heads cross together the variance is larger, and the sample says so.

What another seed of the same training would have made is not in it. Rules that look at the largest of all sequences
(`past_float16`) see the largest mean of a text here, which is never more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.compare.paired_findings import concerned, identity
from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.cell import Key
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.finding import Finding
from attnscope.core.registry import findings
from attnscope.stats.intervals import student
from attnscope.stats.moments import Moments, floats_from_json, floats_to_json


@dataclass(frozen=True, eq=False)
class ByText:
    """Means of one arm's measures over the sequences of each text, of measures that findings read.

    seen = Sequences(texts)
    scan(model, batches, each=seen)
    seen.by_text(survey.cards).survey_of(survey, 3)     the survey of text 3 alone
    """

    means: dict[Key, NDArray[np.float64]]  # [texts] or [texts, heads]; NaN if missing

    @property
    def texts(self) -> int:
        return len(next(iter(self.means.values()), ()))

    def survey_of(self, whole: Survey, text: int, measures: Sequence[str] | None = None) -> Survey:
        """Return `whole` with the means of one text. Lengths, labels and weights stay, so thresholds are the same."""
        wanted = {name: card for name, card in whole.cards.items() if measures is None or name in measures}
        cells = {
            key: replace(cell, moments=Moments.of(self.means[key][text][None])) if key in self.means else cell
            for key, cell in whole.cells.items()
            if key.measure in wanted
        }
        return replace(whole, cards=wanted, cells=cells)

    def covers(self, measures: Sequence[str]) -> bool:
        return any(key.measure in measures for key in self.means)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ByText)
            and self.means.keys() == other.means.keys()
            and all(np.array_equal(one, other.means[key], equal_nan=True) for key, one in self.means.items())
        )

    def to_json(self) -> list[Any]:
        return [[list(key), floats_to_json(one)] for key, one in sorted(self.means.items())]

    @classmethod
    def from_json(cls, data: Any) -> ByText:
        means = {}
        for place, given in data:
            measure, part, stack, site, layer = place
            rows = np.asarray(given, dtype=object).shape
            means[Key(str(measure), str(part), str(stack), str(site), int(layer))] = floats_from_json(given, rows)
        if len({len(one) for one in means.values()}) > 1:
            raise ValueError("not every place has a mean of every text")
        return cls(means)


@dataclass
class Sequences:
    """Observe a scan; `texts` is the number of the text of each sequence."""

    texts: Sequence[int]
    _sums: dict[Key, NDArray[np.float64]] = field(default_factory=dict)
    _counts: dict[Key, NDArray[np.int64]] = field(default_factory=dict)

    def __call__(self, key: Key, values: NDArray[np.float64], samples: NDArray[np.int64]) -> None:
        names = {text: place for place, text in enumerate(dict.fromkeys(sorted(self.texts)))}
        shape = (len(names), *values.shape[1:])
        sums = self._sums.setdefault(key, np.zeros(shape))
        counts = self._counts.setdefault(key, np.zeros(shape, dtype=np.int64))
        for value, sample in zip(values, samples, strict=True):
            finite = np.isfinite(value)
            place = names[self.texts[int(sample)]]
            sums[place] += np.where(finite, value, 0.0)
            counts[place] += finite

    def by_text(self, cards: Mapping[str, Card]) -> ByText:
        """Return the means of measures that findings read, by name or through a card's alarm."""
        named = {measure for kind in findings().values() for measure in kind.reads}
        read = [key for key in self._sums if key.measure in named or cards[key.measure].alarm is not None]
        with np.errstate(invalid="ignore", divide="ignore"):
            return ByText({key: np.asarray(self._sums[key] / self._counts[key]) for key in read})


@dataclass(frozen=True)
class Difference:
    """The mean difference of two arms over texts, and how far chance may move it (infinite if unknown)."""

    mean: float
    chance: float

    def sure(self, direction: int) -> bool:
        """Return whether it goes in this direction, further than chance."""
        return self.mean * direction > self.chance


UNKNOWN = Difference(math.nan, math.inf)


@dataclass(frozen=True)
class Reading:
    """An arm's survey and the means of each text. `struck` are removed heads, which are ignored."""

    survey: Survey
    by_text: ByText | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    struck: Collection[tuple[int, int]] = ()

    def of_each_text(self, finding: Finding) -> list[tuple[Finding, ...]] | None:
        """Return the findings of this identity in every text alone; None if texts are unknown, or if the rule reads no
        measure (`missing_bos`)."""
        kind = findings().get(finding.kind)
        if kind is None:  # a rule of another version
            return None
        measures = tuple(dict.fromkeys([*kind.reads, *filter(None, [finding.details.get("measure")])]))
        if self.by_text is None or not self.by_text.covers(measures):
            return None
        found = []
        for text in range(self.by_text.texts):
            alone = self.by_text.survey_of(self.survey, text, measures)
            same = [one for one in kind(alone, self.thresholds) if identity(one) == identity(finding)]
            found.append(without_heads(same, self.struck))
        return found


def without_heads(found: Sequence[Finding], removed: Collection[tuple[int, int]]) -> tuple[Finding, ...]:
    """Return findings of a pruned model, without its removed heads."""
    kept = []
    for one in found:
        left = tuple(place for place in one.heads if place not in removed)
        if left or not one.heads:
            kept.append(replace(one, heads=left))
    return tuple(kept)


def of_counts(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """Return how many more heads or places it concerns in the treated arm."""
    pairs = _pairs(finding, base, treated)
    return UNKNOWN if pairs is None else over_texts([_places(b) - _places(a) for a, b in pairs], whole=True)


def of_findings(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """Return the difference in the number of such findings between the arms, for findings that do not count heads."""
    pairs = _pairs(finding, base, treated)
    return UNKNOWN if pairs is None else over_texts([len(b) - len(a) for a, b in pairs], whole=True)


def of_numbers(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """Return how much further its number is beyond its threshold in the treated arm. A text without the finding counts
    as exactly on the threshold."""
    pairs = _pairs(finding, base, treated)
    if pairs is None:
        return UNKNOWN
    return over_texts([_beyond(b, finding) - _beyond(a, finding) for a, b in pairs], whole=False)


def over_texts(apart: Sequence[float | int], *, whole: bool) -> Difference:
    """Return Student's interval of the mean; the variance of `whole` numbers is at least the mean of |d|."""
    known = [one for one in apart if math.isfinite(one)]
    g = len(known)
    if g < 2:
        return Difference(float(known[0]) if known else math.nan, math.inf)
    mean = math.fsum(known) / g
    variance = math.fsum((one - mean) ** 2 for one in known) / (g - 1)
    if whole:
        variance = max(variance, math.fsum(map(abs, known)) / g)
    return Difference(mean, student(g - 1) * math.sqrt(variance / g))


def _pairs(
    finding: Finding, base: Reading, treated: Reading
) -> list[tuple[tuple[Finding, ...], tuple[Finding, ...]]] | None:
    one, other = base.of_each_text(finding), treated.of_each_text(finding)
    if one is None or other is None or len(one) != len(other):
        return None
    return list(zip(one, other, strict=True))


def _places(found: Sequence[Finding]) -> int:
    return sum(map(concerned, found))


def _beyond(found: Sequence[Finding], finding: Finding) -> float:
    """Return the distance of the worst finding from its threshold, or 0."""
    alike = [one for one in found if one.threshold_name == finding.threshold_name]
    return max((abs(one.value - one.threshold) for one in alike), default=0.0)
