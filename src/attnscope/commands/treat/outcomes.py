"""Judge what a remedy did to every finding, compared with the baseline arm.

A finding is matched between arms by `paired_findings.identity`. Three criteria are compared, in the order of
`paired_findings.trend`: whether the finding is there and how severe it is; how many heads or places it concerns (a
change of a tenth, and at least one, counts); how far its number is from its threshold. The first that differs decides
whether the remedy helped or harmed. Findings of every severity are judged, because a remedy may be for one that is to
know. A comparison is stricter: it calls a finding better or worse only if it stopped or began to be wrong. A difference
that could be due to the choice of text (`compare/chance.py`) is no effect. With too few texts the judgement is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from attnscope.commands.compare.chance import Difference, Reading, of_counts, of_findings, of_numbers
from attnscope.commands.compare.paired_findings import (
    NOTICEABLE,
    FindingChange,
    concerned,
    identity,
    moved_beyond,
    paired_findings,
    trend,
)
from attnscope.core.finding import SEVERITIES, Finding
from attnscope.core.registry import findings

Judgement = Literal["helped", "no effect", "harmed", "changed", "unknown"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)


@dataclass(frozen=True)
class Outcome:
    """One finding in every arm (None if the arm does not have it), and the judgement."""

    kind: str
    stack: str
    answered: bool  # the remedy is meant for it
    judgement: Judgement
    before: Finding | None
    control: Finding | None
    treated: Finding | None
    chance: float = 0.0  # how much of the difference may be chance, in heads, places or units

    @property
    def any(self) -> Finding:
        found = self.treated or self.control or self.before
        assert found is not None
        return found


def outcomes_of(
    by_arm: Mapping[str, Sequence[Finding]],
    baseline: str,
    answers: Sequence[str] = (),
    readings: Mapping[str, Reading] | None = None,
) -> tuple[Outcome, ...]:
    """Return the outcome of every finding of any arm.

    Findings that the remedy is meant for come first, then those that changed; each group starts with the most severe.
    """
    read = dict(readings or {})
    outcomes = []
    for pair in paired_findings(by_arm[baseline], by_arm["treated"]):
        about = identity(pair.either)
        judgement, chance = judged(pair, read.get(baseline), read.get("treated"))
        earlier = _nearest(pair.either, [finding for finding in by_arm["before"] if identity(finding) == about])
        outcomes.append(
            Outcome(
                kind=pair.kind,
                stack=pair.stack,
                answered=pair.kind in answers,
                judgement=judgement,
                before=earlier if baseline == "control" else pair.before,
                control=pair.before if baseline == "control" else None,
                treated=pair.after,
                chance=chance,
            )
        )
    if baseline == "control":  # findings that training alone removed
        seen = {id(outcome.before) for outcome in outcomes if outcome.before is not None}
        outcomes += [
            Outcome(finding.kind, finding.stack, finding.kind in answers, "no effect", finding, None, None)
            for finding in by_arm["before"]
            if id(finding) not in seen
        ]
    return tuple(sorted(outcomes, key=_told_first))


def judged(pair: FindingChange, base: Reading | None = None, treated: Reading | None = None) -> tuple[Judgement, float]:
    """Return the judgement of one pair, and how much of the deciding difference may be chance (0 without readings)."""
    became = trend(pair.before, pair.after)
    if became in ("changed", "same"):
        return ("no effect" if became == "same" else "changed"), 0.0
    worse, decided = _moved(pair)
    if not worse:
        return "no effect", 0.0
    verdict: Judgement = "harmed" if worse > 0 else "helped"
    kind = findings().get(pair.kind)
    read = kind is None or kind.reads or "measure" in pair.either.details
    if base is None or treated is None or not read:
        return verdict, 0.0  # rules that do not read text (broken weights, for example) do not depend on chance
    apart = decided(pair.either, base, treated)
    if not math.isfinite(apart.chance):
        return "unknown", math.inf
    return (verdict if apart.sure(worse) else "no effect"), apart.chance


def _moved(pair: FindingChange) -> tuple[int, Callable[[Finding, Reading, Reading], Difference]]:
    """Return 1 for noticeably worse, -1 for better, else 0, and the function that estimates chance for what differs."""
    if pair.before is None or pair.after is None:
        return (1 if pair.before is None else -1), (of_counts if pair.either.heads else of_findings)
    was, now = concerned(pair.before), concerned(pair.after)
    grew = _sign(now - was) if abs(now - was) >= max(1.0, NOTICEABLE * was) else 0
    steps = _sign(SEVERITIES.index(pair.after.severity) - SEVERITIES.index(pair.before.severity))
    if steps:  # for many rules severity grows with the number of heads: then that number decided
        return steps, (of_counts if grew == steps else of_numbers)
    return (grew, of_counts) if grew else (moved_beyond(pair.before, pair.after), of_numbers)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _nearest(finding: Finding, among: Sequence[Finding]) -> Finding | None:
    """Return the finding among these whose first block is nearest."""

    def apart(other: Finding) -> float:
        if not finding.layers or not other.layers:
            return math.inf
        return float(abs(finding.layers[0] - other.layers[0]))

    return min(among, key=apart, default=None)


def _told_first(outcome: Outcome) -> tuple[int, int, int]:
    moved = 0 if outcome.judgement in ("helped", "harmed") else 1
    return (0 if outcome.answered else 1), moved, -SEVERITIES.index(outcome.any.severity)
