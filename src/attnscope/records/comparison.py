"""Two surveys side by side: checkpoints, variants, models. Data only; charts and reports draw it.

Measures have different units. To rank changes across them, every difference is divided by the spread
(standard deviation) of that measure's means over all places and heads of both surveys: `effect` 1 means that
the place moved as far as places usually differ from each other. A place whose mean is the same to the last bit is
counted and not listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnscope.core.errors import RefusalError
from attnscope.core.finding import Finding
from attnscope.core.plain import plain
from attnscope.records.decoding import FieldError, decode
from attnscope.records.load import opened
from attnscope.records.record import Record
from attnscope.records.survey.cell import Key
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds

if TYPE_CHECKING:
    import pandas

_MOST_NAMES = 3


@dataclass(frozen=True)
class Change:
    """The mean of one measure at one place in both surveys. `head` is None for the stream."""

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


@dataclass(frozen=True, repr=False)
class Comparison(Record):
    """What changed, the largest effect first, and findings that one survey has and the other has not.

    Its file holds both surveys and the thresholds; all else follows from these and is made again when it is read.
    """

    KIND: ClassVar[str] = "comparison"
    COMMAND: ClassVar[str] = "compare"
    INDENT: ClassVar[int | None] = None

    first: Survey
    second: Survey
    thresholds: Thresholds
    changes: tuple[Change, ...]
    unchanged: int  # how many numbers are the same in both
    appeared: tuple[Finding, ...]
    disappeared: tuple[Finding, ...]
    only_before: tuple[str, ...]  # measures that only one of them has
    only_after: tuple[str, ...]

    @property
    def before(self) -> dict[str, Any]:
        """Provenance of the first survey."""
        return self.first.provenance

    @property
    def after(self) -> dict[str, Any]:
        return self.second.provenance

    def table(self) -> pandas.DataFrame:
        """One row for each change."""
        import pandas

        frame = pandas.DataFrame([asdict(c) for c in self.changes], columns=list(Change.__dataclass_fields__))
        return frame.astype({"head": "Int64"})

    def to_json(self) -> dict[str, Any]:
        """What changed, without the surveys behind it."""
        data: dict[str, Any] = plain(
            {
                "before": self.before,
                "after": self.after,
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
        return {
            "format": "attnscope-comparison",
            "version": self.VERSION,
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "thresholds": asdict(self.thresholds),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        sides = []
        for name in ("first", "second"):
            if not isinstance(data.get(name), Mapping) or data[name].get("version") != Survey.VERSION:
                raise FieldError(f"{name}: not a survey of version {Survey.VERSION}")
            try:
                sides.append(Survey.from_json(data[name]))
            except FieldError as error:
                raise FieldError(f"{name}.{error}") from error
        return compare(sides[0], sides[1], decode(Thresholds, data.get("thresholds")))

    def __repr__(self) -> str:
        names = [str((side.get("model") or {}).get("name", "unnamed model")) for side in (self.before, self.after)]
        found = f"{len(self.appeared)} findings appeared, {len(self.disappeared)} are gone"
        return f"<Comparison of {names[0]} with {names[1]}: {len(self.changes)} numbers changed, {found}>"


def compare(
    before: Survey | str | Path, after: Survey | str | Path, thresholds: Thresholds | None = None
) -> Comparison:
    """Places are matched by measure, part, stack, site, layer and head; what one side lacks is left out.

    Paths are read.
    """
    first, second = opened(before, Survey), opened(after, Survey)
    shared = [key for key in first.cells if key in second.cells]
    if not shared:
        raise RefusalError(_nothing_in_common(first, second))
    chosen = thresholds or Thresholds()
    old, new = diagnose(first, chosen), diagnose(second, chosen)
    pairs = _changes(first, second, shared)
    changes = [change for change in pairs if change.difference]
    return Comparison(
        first=first,
        second=second,
        thresholds=chosen,
        changes=tuple(sorted(changes, key=_largest_first)),
        unchanged=len(pairs) - len(changes),
        appeared=_without(new, old),
        disappeared=_without(old, new),
        only_before=tuple(sorted({k.measure for k in first.cells} - {k.measure for k in second.cells})),
        only_after=tuple(sorted({k.measure for k in second.cells} - {k.measure for k in first.cells})),
    )


def _changes(before: Survey, after: Survey, shared: list[Key]) -> list[Change]:
    rows = []
    for key in shared:
        old, new = before.cells[key], after.cells[key]
        pairs = zip(np.ravel(old.moments.mean).tolist(), np.ravel(new.moments.mean).tolist(), strict=False)
        for place, (a, b) in enumerate(pairs):
            if math.isfinite(a) and math.isfinite(b):
                rows.append((key, place if old.shape else None, a, b))
    spread = _spreads(rows)
    return [
        Change(*key, head=head, before=a, after=b, difference=b - a, effect=_effect(b - a, spread[key[:2]]))
        for key, head, a, b in rows
    ]


def _spreads(rows: list[tuple[Key, int | None, float, float]]) -> Mapping[tuple[str, ...], float]:
    means: dict[tuple[str, ...], list[float]] = {}
    for key, _, a, b in rows:
        means.setdefault(key[:2], []).extend((a, b))
    return {name: float(np.std(values)) for name, values in means.items()}


def _effect(difference: float, spread: float) -> float:
    return difference / spread if spread > 0 else 0.0


def _largest_first(change: Change) -> tuple[Any, ...]:
    place = (change.measure, change.part, change.stack, change.site, change.layer, change.head or 0)
    return (-abs(change.effect), *place)


def _without(findings: tuple[Finding, ...], others: tuple[Finding, ...]) -> tuple[Finding, ...]:
    known = {_identity(f) for f in others}
    return tuple(f for f in findings if _identity(f) not in known)


def _identity(finding: Finding) -> tuple[Any, ...]:
    """A finding is the same one if it is of the same kind and severity at the same place.

    Findings about many heads or layers are one per stack and site. Those about one place are another finding when they
    move: a massive activation to another block, a collapse or the first NaN to another layer. The measure tells alarms
    apart; elsewhere the kind says it.
    """
    details = finding.details
    located = finding.layers[:1] if finding.kind in ("collapse", "nonfinite") else details.get("block")
    measure = details.get("measure") if finding.kind == "alarm" else None
    place = (finding.stack, details.get("site"), details.get("step"), located, measure)
    return (finding.kind, finding.severity, *place)


def _nothing_in_common(first: Survey, second: Survey) -> str:
    """Why two surveys cannot be compared: one is empty, they measured other things, or other parts of a model."""
    sides = ("first", first), ("second", second)
    for which, survey in sides:
        if not survey.cells:
            return f"These surveys cannot be compared, because the {which} one holds no number: scan its model again."
    measures = [sorted({key.measure for key in survey.cells}) for _, survey in sides]
    if set(measures[0]).isdisjoint(measures[1]):
        told = [", ".join(names[:_MOST_NAMES]) + (", ..." if names[_MOST_NAMES:] else "") for names in measures]
        return (
            f"These surveys cannot be compared, because they share no measure (the first has {told[0]}; the second"
            f" {told[1]}): scan both models with the same --measures."
        )
    if set(first.stacks).isdisjoint(second.stacks):
        parts = [" and ".join(f"the {stack}" for stack in survey.stacks) for _, survey in sides]
        return (
            f"These surveys cannot be compared, because the first is of {parts[0]} of its model and the second of"
            f" {parts[1]}: compare models of the same kind."
        )
    return (
        "These surveys cannot be compared, because no measure was taken at the same layer in both:"
        " scan both models with the same --measures."
    )
