"""Pair the findings of two surveys: which are new, worse, better, gone, changed or the same.

A finding is new, worse, better or gone only if its severity is *wrong*: it appeared, became wrong, stopped being wrong,
or disappeared. Anything else that differs is a change. What is normal in healthy models is no loss if it is more, and
no gain if it is less.

    for pair in paired_findings(diagnose(first), diagnose(second)):
        print(pair.status, pair.before, pair.after)

Two findings are paired if they have the same kind, stack and site. Count, value and severity may differ: four uniform
heads that become twenty-four are one finding that got worse. Alarms must also have the same measure, and massive
activations the same direction of the step.

The `trend` of a pair has a direction for every severity, for gates and for the judgement of remedies. It is decided by
severity, then by the number of heads or places, then by the value if it moved by more than a tenth. Kinds that only
describe heads (`neutral`) have no direction: if one appears or disappears, it is "changed".
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal, get_args

from attnscope.core.finding import SEVERITIES, Finding, Severity
from attnscope.core.registry import findings as kinds

Status = Literal["worse", "new", "better", "gone", "changed", "same"]
STATUSES: tuple[Status, ...] = get_args(Status)
REGRESSIONS: tuple[Status, ...] = ("worse", "new")
IMPROVEMENTS: tuple[Status, ...] = ("better", "gone")
NOTICEABLE = 0.1  # relative change below which a number is neither better nor worse


@dataclass(frozen=True)
class FindingChange:
    """A finding before and after; None if it is missing on that side."""

    status: Status
    before: Finding | None
    after: Finding | None
    survey: int = 1  # index in `Comparison.surveys`

    @property
    def either(self) -> Finding:
        """The later finding, or the earlier one if it disappeared."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def kind(self) -> str:
        return self.either.kind

    @property
    def stack(self) -> str:
        return self.either.stack

    @property
    def site(self) -> str | None:
        return self.either.details.get("site")

    @property
    def measure(self) -> str | None:
        return self.either.details.get("measure")

    @property
    def severity(self) -> Severity:
        return self.either.severity

    @property
    def trend(self) -> Status:
        return trend(self.before, self.after)

    def regressed(self, severity: Severity = "wrong") -> bool:
        """Return whether the finding is at least this severe, and new or further beyond its threshold than before."""
        return self.trend in REGRESSIONS and self.either.at_least(severity)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind, "stack": self.stack, "site": self.site, "measure": self.measure}


def paired_findings(before: Sequence[Finding], after: Sequence[Finding], survey: int = 1) -> tuple[FindingChange, ...]:
    """Return the findings of both surveys in pairs, regressions first, most severe first."""
    names = list(dict.fromkeys(map(identity, chain(after, before))))
    pairs = [
        FindingChange(status(old, new), old, new, survey)
        for name in names
        for old, new in _matched(
            [finding for finding in before if identity(finding) == name],
            [finding for finding in after if identity(finding) == name],
        )
    ]
    return tuple(sorted(pairs, key=told_first))


def told_first(pair: FindingChange) -> tuple[int, int, int]:
    """Sort key: regressions, improvements, changes, the rest; each group most severe first."""
    groups = (REGRESSIONS, IMPROVEMENTS, ("changed",), ("same",))
    group = next(n for n, some in enumerate(groups) if pair.status in some)
    return group, -SEVERITIES.index(pair.severity), STATUSES.index(pair.status)


def identity(finding: Finding) -> tuple[Hashable, ...]:
    """Return the fields that paired findings share. NaNs may move between sites, but not from weights to runs."""
    details = finding.details
    site = None if finding.kind == "nonfinite" else details.get("site")
    measure = details.get("measure") if finding.kind == "alarm" else None
    return finding.kind, finding.stack, site, measure, details.get("step"), "weights" in details


def concerned(finding: Finding) -> int:
    """Return the number of heads that a finding concerns, or of places in the stream."""
    return len(finding.heads) or len(finding.layers)


def status(before: Finding | None, after: Finding | None) -> Status:
    """Return the status of a pair: new, worse, better or gone only if it is wrong on one side and not on the other."""
    was, now = (finding is not None and finding.severity == "wrong" for finding in (before, after))
    moved = trend(before, after)
    if now and not was:
        return "new" if before is None else "worse"
    if was and not now:
        return "gone" if after is None else "better"
    return "same" if moved == "same" else "changed"


def trend(before: Finding | None, after: Finding | None) -> Status:
    """Return the direction of a pair, whatever its severity."""
    if any(finding is not None and _neutral(finding) for finding in (before, after)) and (
        before is None or after is None
    ):
        return "changed"
    if before is None or after is None:
        return "new" if before is None else "gone"
    if _neutral(after):
        return "same" if _stayed(before, after) and before.severity == after.severity else "changed"
    steps = (
        SEVERITIES.index(after.severity) - SEVERITIES.index(before.severity),
        concerned(after) - concerned(before),
        moved_beyond(before, after),
    )
    decisive = next((step for step in steps if step), 0)
    if decisive:
        return "worse" if decisive > 0 else "better"
    return "same" if _stayed(before, after) else "changed"


def _matched(before: list[Finding], after: list[Finding]) -> list[tuple[Finding | None, Finding | None]]:
    """Pair findings of one identity: those in the same place first, then in order."""
    pairs: list[tuple[Finding | None, Finding | None]] = []
    waiting = []
    for new in after:
        twin = next((old for old in before if old.layers == new.layers), None)
        if twin is None:
            waiting.append(new)
        else:
            before = [old for old in before if old is not twin]
            pairs.append((twin, new))
    both = min(len(before), len(waiting))
    pairs += zip(before[:both], waiting[:both], strict=True)
    pairs += [(None, new) for new in waiting[both:]]
    return pairs + [(old, None) for old in before[both:]]


def _neutral(finding: Finding) -> bool:
    kind = kinds().get(finding.kind)
    return bool(kind and kind.neutral) or finding.details.get("step") == "down"  # the counterpart of a step up


def moved_beyond(before: Finding, after: Finding) -> int:
    """Return 1 if the number is noticeably further beyond its threshold, -1 if noticeably closer, else 0."""
    old, new = before.value, after.value
    alike = before.threshold_name == after.threshold_name
    if not alike or not (math.isfinite(old) and math.isfinite(new)) or abs(new - old) <= NOTICEABLE * abs(old):
        return 0
    above = before.value >= before.threshold
    return 1 if (new > old) == above else -1


def _stayed(before: Finding, after: Finding) -> bool:
    return (before.layers, before.heads) == (after.layers, after.heads)
