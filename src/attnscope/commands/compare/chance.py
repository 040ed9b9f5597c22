"""Decide whether a change in a finding exceeds chance, that is, the variation between texts of the same kind.

The random sample is the texts (documents). Heads are not independent: a text that makes one head idle makes its
neighbours idle too, and the sequences of one text are alike. So every text is diagnosed separately in both arms. d_k is
the difference between the arms in text k: in the finding's number of heads or places, or in its value. Over g texts,
with sample variance s^2, the mean of d_k has Student's interval,

    mean(d) +- t_{g-1, 0.975} sqrt(s^2 / g)

and a change exceeds chance if that interval excludes zero, on the side of the change. One text is not enough.

Counts need a lower bound on s: over a few texts they are easily all equal, and with s = 0, two texts in which one head
crossed the threshold would count as certain. If heads cross the threshold one by one, equally often both ways, then
d is a sum of +1 and -1, and its variance is the mean number of crossings, which is at least E|d|. So s^2 is at least
the mean of |d|. If heads cross together, the variance is larger, and the sample shows it.

The variation between training seeds is not included. Findings that read the maximum over sequences (`past_float16`) get
the largest mean of a text here, which is never larger than that maximum.
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
    """The means of one arm over the sequences of each text, for the measures that findings read.

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
            and all(np.array_equal(mean, other.means[key], equal_nan=True) for key, mean in self.means.items())
        )

    def to_json(self) -> list[Any]:
        return [[list(key), floats_to_json(mean)] for key, mean in sorted(self.means.items())]

    @classmethod
    def from_json(cls, data: Any) -> ByText:
        means = {}
        for key, numbers in data:
            measure, part, stack, site, layer = key
            if type(layer) is not int:
                raise ValueError("a whole number of a block is needed")
            rows = np.asarray(numbers, dtype=object).shape
            means[Key(str(measure), str(part), str(stack), str(site), int(layer))] = floats_from_json(numbers, rows)
        if len({len(mean) for mean in means.values()}) > 1:
            raise ValueError("not every place has a mean of every text")
        return cls(means)


@dataclass
class Sequences:
    """An `each` callback for a scan that sums values by text; `texts` maps each sequence to the number of its text."""

    texts: Sequence[int]
    _sums: dict[Key, NDArray[np.float64]] = field(default_factory=dict)
    _counts: dict[Key, NDArray[np.int64]] = field(default_factory=dict)

    def __call__(self, key: Key, values: NDArray[np.float64], samples: NDArray[np.int64]) -> None:
        names = {text: row for row, text in enumerate(dict.fromkeys(sorted(self.texts)))}
        shape = (len(names), *values.shape[1:])
        sums = self._sums.setdefault(key, np.zeros(shape))
        counts = self._counts.setdefault(key, np.zeros(shape, dtype=np.int64))
        for value, sample in zip(values, samples, strict=True):
            finite = np.isfinite(value)
            row = names[self.texts[int(sample)]]
            sums[row] += np.where(finite, value, 0.0)
            counts[row] += finite

    def by_text(self, cards: Mapping[str, Card]) -> ByText:
        """Return the means of the measures that findings name, and of those with an alarm on their card."""
        named = {measure for kind in findings().values() for measure in kind.reads}
        read = [key for key in self._sums if key.measure in named or cards[key.measure].alarm is not None]
        with np.errstate(invalid="ignore", divide="ignore"):
            return ByText({key: np.asarray(self._sums[key] / self._counts[key]) for key in read})


@dataclass(frozen=True)
class Difference:
    """The mean difference between two arms over texts, and half the width of its interval (infinite if unknown)."""

    mean: float
    chance: float

    def sure(self, direction: int) -> bool:
        """Return whether the difference has this sign and exceeds chance."""
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
        """For every text, return the findings with the identity of `finding`. Return None if texts are unknown, or if
        that kind reads no measure (`missing_bos`)."""
        kind = findings().get(finding.kind)
        if kind is None:  # a kind of another version
            return None
        measures = tuple(dict.fromkeys([*kind.reads, *filter(None, [finding.details.get("measure")])]))
        if self.by_text is None or not self.by_text.covers(measures):
            return None
        by_text = []
        for text in range(self.by_text.texts):
            alone = self.by_text.survey_of(self.survey, text, measures)
            same = [other for other in kind(alone, self.thresholds) if identity(other) == identity(finding)]
            by_text.append(without_heads(same, self.struck))
        return by_text


def without_heads(findings_of_model: Sequence[Finding], removed: Collection[tuple[int, int]]) -> tuple[Finding, ...]:
    """Return the findings without the removed heads of a pruned model."""
    kept = []
    for finding in findings_of_model:
        left = tuple(place for place in finding.heads if place not in removed)
        if left or not finding.heads:
            kept.append(replace(finding, heads=left))
    return tuple(kept)


def of_counts(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """Return the difference in the number of heads or places that the finding concerns."""
    pairs = _pairs(finding, base, treated)
    return UNKNOWN if pairs is None else over_texts([_places(b) - _places(a) for a, b in pairs], whole=True)


def of_findings(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """Return the difference in the number of such findings, for kinds that do not count heads."""
    pairs = _pairs(finding, base, treated)
    return UNKNOWN if pairs is None else over_texts([len(b) - len(a) for a, b in pairs], whole=True)


def of_numbers(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """Return the difference in the distance of the finding's value from its threshold. A text without the finding has
    distance 0."""
    pairs = _pairs(finding, base, treated)
    if pairs is None:
        return UNKNOWN
    return over_texts([_beyond(b, finding) - _beyond(a, finding) for a, b in pairs], whole=False)


def over_texts(differences: Sequence[float | int], *, whole: bool) -> Difference:
    """Return the mean and half of Student's interval; with `whole`, the variance is at least the mean of |d|."""
    known = [difference for difference in differences if math.isfinite(difference)]
    g = len(known)
    if g < 2:
        return Difference(float(known[0]) if known else math.nan, math.inf)
    mean = math.fsum(known) / g
    variance = math.fsum((difference - mean) ** 2 for difference in known) / (g - 1)
    if whole:
        variance = max(variance, math.fsum(map(abs, known)) / g)
    return Difference(mean, student(g - 1) * math.sqrt(variance / g))


def _pairs(
    finding: Finding, base: Reading, treated: Reading
) -> list[tuple[tuple[Finding, ...], tuple[Finding, ...]]] | None:
    first, second = base.of_each_text(finding), treated.of_each_text(finding)
    if first is None or second is None or len(first) != len(second):
        return None
    return list(zip(first, second, strict=True))


def _places(found: Sequence[Finding]) -> int:
    return sum(map(concerned, found))


def _beyond(found: Sequence[Finding], finding: Finding) -> float:
    """Return the distance of the worst finding from its threshold, or 0."""
    alike = [other for other in found if other.threshold_name == finding.threshold_name]
    return max((abs(other.value - other.threshold) for other in alike), default=0.0)
