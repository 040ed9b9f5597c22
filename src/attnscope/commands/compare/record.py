"""`attnscope.compare` and its record: surveys compared with the first one as the baseline.

Measures have different units. To rank changes across them, every difference is divided by the spread (standard
deviation) of that measure's means over all places and heads of these surveys: an `effect` of 1 means that the place
moved as far as places usually differ from each other. Places with bit-equal means are counted, not listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnscope.commands.compare.paired_findings import FindingChange, paired_findings, told_first
from attnscope.commands.records import opened
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.cell import Key
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.decoding import FieldError, decode, plain
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Finding, Severity
from attnscope.core.words import count
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

_MOST_NAMES = 3
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True)
class Change:
    """The mean of one measure at one place in two surveys. `head` is None for the stream."""

    measure: str
    part: str
    stack: str
    site: str
    layer: int
    head: int | None
    before: float
    after: float
    difference: float
    effect: float
    survey: int = 1  # index in `Comparison.surveys` of the survey that is compared with the first


@dataclass(frozen=True, repr=False)
class Comparison(Record):
    """Two surveys or more, each compared with the first.

    `changes` are sorted by effect, largest first; `findings` start with those that got worse. The file holds the
    surveys and the thresholds, and everything else is computed from them when it is read.
    """

    KIND: ClassVar[str] = "comparison"
    COMMAND: ClassVar[str] = "compare"
    FILE: ClassVar[str] = "comparison.json"
    INDENT: ClassVar[int | None] = None

    surveys: tuple[Survey, ...]
    thresholds: Thresholds
    changes: tuple[Change, ...]
    unchanged: int  # how many numbers are equal
    findings: tuple[FindingChange, ...]

    @property
    def first(self) -> Survey:
        """The baseline."""
        return self.surveys[0]

    @property
    def second(self) -> Survey:
        """The survey that is compared with the baseline; the last one if there are several."""
        return self.surveys[-1]

    @property
    def before(self) -> dict[str, Any]:
        """Provenance of the first survey."""
        return self.first.provenance

    @property
    def after(self) -> dict[str, Any]:
        return self.second.provenance

    @property
    def appeared(self) -> tuple[Finding, ...]:
        """Findings that the first survey lacks."""
        return tuple(pair.after for pair in self.findings if pair.status == "new" and pair.after is not None)

    @property
    def disappeared(self) -> tuple[Finding, ...]:
        return tuple(pair.before for pair in self.findings if pair.status == "gone" and pair.before is not None)

    @property
    def only_before(self) -> tuple[str, ...]:
        """Measures of the first survey that another survey lacks."""
        return _lacking(self.first, self.surveys[1:])

    @property
    def only_after(self) -> tuple[str, ...]:
        return tuple(sorted({name for other in self.surveys[1:] for name in _lacking(other, (self.first,))}))

    def regressions(self, severity: Severity = "note") -> tuple[FindingChange, ...]:
        """Return the findings that are new or got worse, and are at least this severe."""
        return tuple(pair for pair in self.findings if pair.regressed(severity))

    def table(self) -> pandas.DataFrame:
        """Return a row for each change; `survey` is the index of the survey compared with the first."""
        import pandas

        frame = pandas.DataFrame([asdict(c) for c in self.changes], columns=list(Change.__dataclass_fields__))
        return frame.astype({"head": "Int64"})

    def to_json(self) -> dict[str, Any]:
        """Return the changes, without the surveys."""
        data: dict[str, Any] = plain(
            {
                "before": self.before,
                "after": self.after,
                "surveys": [survey.provenance for survey in self.surveys],
                "findings": [pair.to_json() for pair in self.findings],
                "changes": [asdict(c) for c in self.changes],
                "unchanged": self.unchanged,
                "appeared": [f.to_json() for f in self.appeared],
                "disappeared": [f.to_json() for f in self.disappeared],
                "only_before": self.only_before,
                "only_after": self.only_after,
            }
        )
        return data

    def document(self) -> dict[str, Any]:
        """Return the content of the file: two surveys as `first` and `second`, more as a list."""
        told = [survey.to_json() for survey in self.surveys]
        held = {"first": told[0], "second": told[1]} if len(told) == 2 else {"surveys": told}
        return {
            "format": "attnscope-comparison",
            "version": self.VERSION,
            **held,
            "thresholds": asdict(self.thresholds),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        listed = data.get("surveys")
        if listed is not None and (not isinstance(listed, list) or len(listed) < 2):
            raise FieldError("surveys: a list of two surveys or more is needed")
        named = (
            {name: data.get(name) for name in ("first", "second")}
            if listed is None
            else {f"surveys[{n}]": document for n, document in enumerate(listed)}
        )
        surveys = []
        for name, held in named.items():
            if not isinstance(held, Mapping) or held.get("version") != Survey.VERSION:
                raise FieldError(f"{name}: not a survey of version {Survey.VERSION}")
            try:
                surveys.append(Survey.from_json(held))
            except FieldError as error:
                raise FieldError(f"{name}.{error}") from error
        return compare(*surveys, thresholds=decode(Thresholds, data.get("thresholds")))

    def __repr__(self) -> str:
        names = [str((one.provenance.get("model") or {}).get("name", "unnamed model")) for one in self.surveys]
        told = f"{names[0][-60:]} with {names[1][-60:]}" if len(names) == 2 else f"{len(names)} surveys"
        became = {
            status: sum(pair.status == status for pair in self.findings)
            for status in ("new", "worse", "better", "gone")
        }
        found = ", ".join(f"{n} {status}" for status, n in became.items())
        return f"<Comparison of {told}: findings {found}; {count(len(self.changes), 'number')} changed>"


def compare(*surveys: Survey | str | Path, thresholds: Thresholds | None = None) -> Comparison:
    """Compare surveys with the first one.

    Places are matched by measure, part, stack, site, block and head. Places that one survey lacks are skipped.

    Parameters
    ----------
    *surveys : Survey, str or Path
        Two surveys or more, or their paths.
    thresholds : Thresholds, optional
        Changed thresholds of findings.

    Returns
    -------
    Comparison
        Paired findings, and every number that changed.

    Raises
    ------
    RefusalError
        If fewer than two surveys are given, or two have no number at the same place.

    Examples
    --------
    >>> first, second = (attnscope.scan("pocket", samples=4, seed=seed) for seed in (0, 1))
    >>> comparison = attnscope.compare(first, second)
    """
    if len(surveys) < 2:
        raise RefusalError("A comparison needs two surveys or more: give another one.")
    read = tuple(opened(survey, Survey) for survey in surveys)
    chosen = thresholds or Thresholds()
    diagnosed = [diagnose(survey, chosen) for survey in read]
    pairs: list[Change] = []
    for index, other in enumerate(read[1:], 1):
        rows = _rows(read[0], other, index)
        spread = _spreads(rows)  # of these two only, so that a third survey does not change their effects
        pairs += [_change(row, spread) for row in rows]
    changes = [change for change in pairs if change.difference]
    findings = [
        pair for index in range(1, len(read)) for pair in paired_findings(diagnosed[0], diagnosed[index], survey=index)
    ]
    return Comparison(
        surveys=read,
        thresholds=chosen,
        changes=tuple(sorted(changes, key=_largest_first)),
        unchanged=len(pairs) - len(changes),
        findings=tuple(sorted(findings, key=told_first)),
    )


_Row = tuple[Key, int | None, float, float, int]
"""A place, a head, its mean in the first survey and in another one, and the index of the other one."""


def _rows(first: Survey, other: Survey, index: int) -> list[_Row]:
    shared = [key for key in first.cells if key in other.cells]
    if not shared:
        raise RefusalError(_nothing_in_common(first, other, index))
    rows: list[_Row] = []
    for key in shared:
        old, new = first.cells[key], other.cells[key]
        pairs = zip(np.ravel(old.moments.mean).tolist(), np.ravel(new.moments.mean).tolist(), strict=False)
        rows += [
            (key, head if old.shape else None, a, b, index)
            for head, (a, b) in enumerate(pairs)
            if math.isfinite(a) and math.isfinite(b)
        ]
    return rows


def _change(row: _Row, spread: Mapping[tuple[str, ...], float]) -> Change:
    key, head, a, b, index = row
    usual = spread[key[:2]]
    effect = (b - a) / usual if usual > 0 else 0.0
    return Change(*key, head=head, before=a, after=b, difference=b - a, effect=effect, survey=index)


def _spreads(rows: Sequence[_Row]) -> Mapping[tuple[str, ...], float]:
    means: dict[tuple[str, ...], list[float]] = {}
    for key, _, a, b, _ in rows:
        means.setdefault(key[:2], []).extend((a, b))
    return {name: float(np.std(values)) for name, values in means.items()}


def _largest_first(change: Change) -> tuple[Any, ...]:
    place = (change.measure, change.part, change.stack, change.site, change.layer, change.head or 0)
    return (-abs(change.effect), change.survey, *place)


def _lacking(survey: Survey, others: Sequence[Survey]) -> tuple[str, ...]:
    """Return the measures of a survey that one of the others lacks."""
    own = {key.measure for key in survey.cells}
    return tuple(sorted({name for other in others for name in own - {key.measure for key in other.cells}}))


def _nothing_in_common(first: Survey, second: Survey, index: int) -> str:
    """Return why two surveys cannot be compared: one is empty, or they share no measure, stack or place."""
    other = _ORDINALS[index] if index < len(_ORDINALS) else f"{index + 1}th"
    sides = ("first", first), (other, second)
    for which, survey in sides:
        if not survey.cells:
            return f"These surveys cannot be compared, because the {which} one holds no number: scan its model again."
    measures = [sorted({key.measure for key in survey.cells}) for _, survey in sides]
    if set(measures[0]).isdisjoint(measures[1]):
        listed = [", ".join(names[:_MOST_NAMES]) + (", ..." if names[_MOST_NAMES:] else "") for names in measures]
        return (
            f"These surveys cannot be compared, because they share no measure (the first has {listed[0]}; the {other}"
            f" {listed[1]}): scan both models with the same `measures=`."
        )
    if set(first.stacks).isdisjoint(second.stacks):
        parts = [" and ".join(f"the {stack}" for stack in survey.stacks) for _, survey in sides]
        return (
            f"These surveys cannot be compared, because the first is of {parts[0]} of its model and the {other} of"
            f" {parts[1]}: compare models of the same kind."
        )
    return (
        "These surveys cannot be compared, because no measure was taken at the same block in both:"
        " scan both models with the same `measures=`."
    )
