"""What became of every finding under a remedy: helped, no effect, or harmed, against the same training without it.

A finding is followed through the arms by what it is about (`paired_findings.identity`). The remedy helped where, beside
the baseline, the finding is gone or less severe, concerns noticeably fewer heads or places (a tenth of them, and at
least one), or its number came noticeably closer to its threshold; harmed where the opposite is true. What training
alone did stands in the control and is not counted for the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from attnscope.core.finding import SEVERITIES, Finding
from attnscope.records.paired_findings import NOTICEABLE, FindingChange, concerned, identity, paired_findings, status

Judgement = Literal["helped", "no effect", "harmed", "changed"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)


@dataclass(frozen=True)
class Outcome:
    """One finding in every arm; None where an arm has no such finding. `changed`: neither good nor bad."""

    kind: str
    stack: str
    answered: bool  # the remedy is meant for it
    judgement: Judgement
    before: Finding | None
    control: Finding | None
    treated: Finding | None

    @property
    def any(self) -> Finding:
        found = self.treated or self.control or self.before
        assert found is not None
        return found


def outcomes_of(
    found: Mapping[str, Sequence[Finding]], baseline: str, answers: Sequence[str] = ()
) -> tuple[Outcome, ...]:
    """Every finding of any arm, those that the remedy answers first, then what changed, the most severe at the top."""
    outcomes = []
    for pair in paired_findings(found[baseline], found["treated"]):
        about = identity(pair.either)
        earlier = _nearest(pair.either, [one for one in found["before"] if identity(one) == about])
        outcomes.append(
            Outcome(
                kind=pair.kind,
                stack=pair.stack,
                answered=pair.kind in answers,
                judgement=judged(pair),
                before=earlier if baseline == "control" else pair.before,
                control=pair.before if baseline == "control" else None,
                treated=pair.after,
            )
        )
    if baseline == "control":  # what training alone did away with
        seen = {id(one.before) for one in outcomes if one.before is not None}
        outcomes += [
            Outcome(one.kind, one.stack, one.kind in answers, "no effect", one, None, None)
            for one in found["before"]
            if id(one) not in seen
        ]
    return tuple(sorted(outcomes, key=_told_first))


def without_heads(found: Sequence[Finding], removed: Collection[tuple[int, int]]) -> tuple[Finding, ...]:
    """Findings of a pruned model: what is said of heads that are out is said of nothing."""
    kept = []
    for one in found:
        left = tuple(place for place in one.heads if place not in removed)
        if left or not one.heads:
            kept.append(replace(one, heads=left))
    return tuple(kept)


def judged(pair: FindingChange) -> Judgement:
    """The verdict on one pair; a single head more or fewer among many is no effect."""
    became = status(pair.before, pair.after)
    if became in ("new", "gone"):
        return "harmed" if became == "new" else "helped"
    if became not in ("worse", "better") or pair.before is None or pair.after is None:
        return "no effect" if became == "same" else "changed"
    if pair.before.severity == pair.after.severity:
        fewer = concerned(pair.before) - concerned(pair.after)
        if fewer and abs(fewer) < max(1.0, NOTICEABLE * concerned(pair.before)):
            return "no effect"
    return "harmed" if became == "worse" else "helped"


def _nearest(finding: Finding, among: Sequence[Finding]) -> Finding | None:
    """Of several findings of one identity, the one whose blocks are the nearest."""

    def apart(other: Finding) -> float:
        if not finding.layers or not other.layers:
            return math.inf
        return float(abs(finding.layers[0] - other.layers[0]))

    return min(among, key=apart, default=None)


def _told_first(outcome: Outcome) -> tuple[int, int, int]:
    moved = 0 if outcome.judgement in ("helped", "harmed") else 1
    return (0 if outcome.answered else 1), moved, -SEVERITIES.index(outcome.any.severity)
