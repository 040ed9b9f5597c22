"""What became of every finding under a remedy: helped, no effect, or harmed, against the same training without it.

A finding is followed through the arms by what it is about (`paired_findings.identity`). The remedy helped where, beside
the baseline, the finding is gone or less severe, concerns noticeably fewer heads or places (a tenth of them, and at
least one), or its number came noticeably closer to its threshold; harmed where the opposite is true. A difference that
other text of the same kind might have made (`chance`) is no effect, however large it looks. What training alone did
stands in the control and is not counted for the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from attnscope.core.finding import SEVERITIES, Finding
from attnscope.records.chance import SURE, Reading
from attnscope.records.paired_findings import (
    NOTICEABLE,
    FindingChange,
    concerned,
    identity,
    moved_beyond,
    paired_findings,
    status,
)

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
    chance: float = 0.0  # by how many heads or places, or by how much of its number, two readings differ by chance

    @property
    def any(self) -> Finding:
        found = self.treated or self.control or self.before
        assert found is not None
        return found


def outcomes_of(
    found: Mapping[str, Sequence[Finding]],
    baseline: str,
    answers: Sequence[str] = (),
    readings: Mapping[str, Reading] | None = None,
) -> tuple[Outcome, ...]:
    """Every finding of any arm, those that the remedy answers first, then what changed, the most severe at the top."""
    read = {name: Reading() for name in found} | dict(readings or {})
    outcomes = []
    for pair in paired_findings(found[baseline], found["treated"]):
        about = identity(pair.either)
        judgement, chance = judged(pair, read[baseline], read["treated"])
        earlier = _nearest(pair.either, [one for one in found["before"] if identity(one) == about])
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


def judged(pair: FindingChange, base: Reading, treated: Reading) -> tuple[Judgement, float]:
    """The verdict on one pair, and how large a difference chance would make of what decided it."""
    became = status(pair.before, pair.after)
    if became in ("changed", "same"):
        return ("no effect" if became == "same" else "changed"), 0.0
    counted, chance = _counted(pair, base, treated)
    if counted:
        return counted, chance
    better, chance = _by_number(pair, base, treated, became in ("worse", "new"))
    return ("no effect" if better is None else "helped" if better else "harmed"), chance


def _by_number(pair: FindingChange, base: Reading, treated: Reading, worse: bool) -> tuple[bool | None, float]:
    """Whether the number of a finding got better; None where chance might have moved it so far."""
    if pair.before is None or pair.after is None:
        chance = SURE * (base if pair.after is None else treated).error_of_value(pair.either)
        beyond = abs(pair.either.value - pair.either.threshold)
        return (None if beyond <= chance else not worse), chance
    chance = SURE * math.hypot(base.error_of_value(pair.before), treated.error_of_value(pair.after))
    if pair.before.severity != pair.after.severity:
        by_chance = chance > 0 and abs(pair.after.value - pair.before.value) <= chance
        return (None if by_chance else not worse), chance
    further = moved_beyond(pair.before, pair.after)
    sure = further and abs(pair.after.value - pair.before.value) > chance
    return (further < 0 if sure else None), chance


def _counted(pair: FindingChange, base: Reading, treated: Reading) -> tuple[Judgement | None, float]:
    """By how many heads or places it concerns; None where that says nothing, and its number has to."""
    was, now = (0 if one is None else concerned(one) for one in (pair.before, pair.after))
    if was == now or (not pair.either.heads and (pair.before is None or pair.after is None)):
        return None, 0.0
    # Where the readings do not explain a count, nothing is known of its chance, and nothing is claimed.
    arms = ((pair.before, base), (pair.after, treated))
    known = all(one is None or arm.survey is None or arm.explains(one) for one, arm in arms)
    if not known:
        return "no effect", math.inf
    chance = SURE * math.sqrt(sum(reading.variance_of_count(pair.either) for reading in (base, treated)))
    if abs(now - was) < max(1.0, NOTICEABLE * was) or abs(now - was) <= chance:
        return "no effect", chance
    return ("harmed" if now > was else "helped"), chance


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
