"""What became of every finding under a remedy: helped, no effect, or harmed, against the same training without it.

A finding is followed through the arms by what it is about (`paired_findings.identity`). The remedy helped where, beside
the baseline, the finding is gone or less severe; as severe, but concerns noticeably fewer heads or places (a tenth of
them, and at least one); or as severe and as wide, and its number came noticeably closer to its threshold; harmed where
the opposite is true. That order is the one of `paired_findings.status`. A difference that
other text of the same kind might have made (`chance`) is no effect, however large it looks; where there are too few
texts to say what chance makes, the verdict is unknown. What training alone did stands in the control and is not counted
for the remedy.
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
    status,
)
from attnscope.core.finding import SEVERITIES, Finding
from attnscope.core.registry import findings

Judgement = Literal["helped", "no effect", "harmed", "changed", "unknown"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)


@dataclass(frozen=True)
class Outcome:
    """One finding in every arm; None where an arm has no such finding. `changed`: neither good nor bad; `unknown`:
    something moved, and there is too little text to say whether it is more than chance."""

    kind: str
    stack: str
    answered: bool  # the remedy is meant for it
    judgement: Judgement
    before: Finding | None
    control: Finding | None
    treated: Finding | None
    chance: float = 0.0  # by how many heads or places, or by how much of its number, chance may move the difference

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
    read = dict(readings or {})
    outcomes = []
    for pair in paired_findings(found[baseline], found["treated"]):
        about = identity(pair.either)
        judgement, chance = judged(pair, read.get(baseline), read.get("treated"))
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


def judged(pair: FindingChange, base: Reading | None = None, treated: Reading | None = None) -> tuple[Judgement, float]:
    """The verdict on one pair, and how large a difference chance would make of what decided it. Without readings the
    findings are taken for the whole truth."""
    became = status(pair.before, pair.after)
    if became in ("changed", "same"):
        return ("no effect" if became == "same" else "changed"), 0.0
    worse, decided = _moved(pair)
    if not worse:
        return "no effect", 0.0
    verdict: Judgement = "harmed" if worse > 0 else "helped"
    kind = findings().get(pair.kind)
    read = kind is None or kind.reads or "measure" in pair.either.details
    if base is None or treated is None or not read:
        return verdict, 0.0  # a rule that reads no text, such as broken weights, leaves nothing to chance
    told = decided(pair.either, base, treated)
    if not math.isfinite(told.chance):
        return "unknown", math.inf
    return (verdict if told.sure(worse) else "no effect"), told.chance


def _moved(pair: FindingChange) -> tuple[int, Callable[[Finding, Reading, Reading], Difference]]:
    """1 where it is noticeably worse, -1 where it is better, 0 where neither; and what of it must be told from chance:
    how many heads it concerns, whether it is there at all, or its number."""
    if pair.before is None or pair.after is None:
        return (1 if pair.before is None else -1), (of_counts if pair.either.heads else of_findings)
    was, now = concerned(pair.before), concerned(pair.after)
    grew = _sign(now - was) if abs(now - was) >= max(1.0, NOTICEABLE * was) else 0
    steps = _sign(SEVERITIES.index(pair.after.severity) - SEVERITIES.index(pair.before.severity))
    if steps:  # many rules call what concerns most heads more severe: then it is their number that chance may move
        return steps, (of_counts if grew == steps else of_numbers)
    return (grew, of_counts) if grew else (moved_beyond(pair.before, pair.after), of_numbers)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


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
