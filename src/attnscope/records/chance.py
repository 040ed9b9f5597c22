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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from attnscope.core.finding import Finding
from attnscope.core.registry import findings
from attnscope.records.by_text import ByText
from attnscope.records.intervals import student
from attnscope.records.paired_findings import concerned, identity
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds


@dataclass(frozen=True)
class Difference:
    """The mean over texts of what differs between two arms, and how far chance may move it; infinite where unknown."""

    mean: float
    chance: float

    def sure(self, direction: int) -> bool:
        """Whether it goes that way, and further than chance would."""
        return self.mean * direction > self.chance


UNKNOWN = Difference(math.nan, math.inf)


@dataclass(frozen=True)
class Reading:
    """An arm's survey, and what each text had to do with it. `struck` are heads that are gone and say nothing."""

    survey: Survey
    by_text: ByText | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    struck: Collection[tuple[int, int]] = ()

    def of_each_text(self, finding: Finding) -> list[tuple[Finding, ...]] | None:
        """The findings of this identity in every text alone; None where texts are not known. A rule that reads no
        measure (`missing_bos`) has no texts behind it."""
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
    """Findings of a pruned model: what is said of heads that are out is said of nothing."""
    kept = []
    for one in found:
        left = tuple(place for place in one.heads if place not in removed)
        if left or not one.heads:
            kept.append(replace(one, heads=left))
    return tuple(kept)


def of_counts(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """How many more heads or places it concerns in the treated arm."""
    pairs = _pairs(finding, base, treated)
    return UNKNOWN if pairs is None else over_texts([_places(b) - _places(a) for a, b in pairs], whole=True)


def of_findings(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """How many more findings of this identity the treated arm has: of those that are there or not, and count no
    heads."""
    pairs = _pairs(finding, base, treated)
    return UNKNOWN if pairs is None else over_texts([len(b) - len(a) for a, b in pairs], whole=True)


def of_numbers(finding: Finding, base: Reading, treated: Reading) -> Difference:
    """By how much its number is further beyond its threshold in the treated arm. A text without the finding has not
    passed the threshold, and counts as if it stood on it."""
    pairs = _pairs(finding, base, treated)
    if pairs is None:
        return UNKNOWN
    return over_texts([_beyond(b, finding) - _beyond(a, finding) for a, b in pairs], whole=False)


def over_texts(apart: Sequence[float | int], *, whole: bool) -> Difference:
    """Student's interval of the mean; `whole`: of whole numbers, whose variance is at least the mean of their size."""
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
    """Distance of the worst of them from its threshold; 0 where there is none."""
    alike = [one for one in found if one.threshold_name == finding.threshold_name]
    return max((abs(one.value - one.threshold) for one in alike), default=0.0)
