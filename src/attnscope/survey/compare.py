"""Two surveys side by side: checkpoints, variants, models. Data only; charts and reports draw it.

Measures have different units. To rank changes across them, every difference is divided by the spread
(standard deviation) of that measure's means over all places and heads of both surveys: `effect` 1 means that
the place moved as far as places usually differ from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.core.errors import RefusalError
from attnscope.core.finding import Finding
from attnscope.survey.cell import Key
from attnscope.survey.diagnose import diagnose
from attnscope.survey.provenance import plain
from attnscope.survey.survey import Survey
from attnscope.survey.thresholds import Thresholds

if TYPE_CHECKING:
    import pandas


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


@dataclass(frozen=True)
class Comparison:
    """Changes with the largest effect first, and findings that one survey has and the other has not."""

    before: dict[str, Any]  # provenance of the first survey
    after: dict[str, Any]  # and of the second
    changes: tuple[Change, ...]
    appeared: tuple[Finding, ...]
    disappeared: tuple[Finding, ...]
    only_before: tuple[str, ...]  # measures that only one of them has
    only_after: tuple[str, ...]

    def table(self) -> pandas.DataFrame:
        import pandas

        frame = pandas.DataFrame([asdict(c) for c in self.changes], columns=list(Change.__dataclass_fields__))
        return frame.astype({"head": "Int64"})

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = plain(
            {
                "before": self.before,
                "after": self.after,
                "changes": [asdict(c) for c in self.changes],
                "appeared": [f.to_json() for f in self.appeared],
                "disappeared": [f.to_json() for f in self.disappeared],
                "only_before": self.only_before,
                "only_after": self.only_after,
            }
        )
        return data


def compare(before: Survey, after: Survey, thresholds: Thresholds | None = None) -> Comparison:
    """Places are matched by measure, part, stack, site, layer and head; what one side lacks is left out."""
    shared = [key for key in before.cells if key in after.cells]
    if not shared:
        raise RefusalError(
            f"These two surveys cannot be compared, they have no measure at the same place: the first has"
            f" {_contents(before)}, the second {_contents(after)}; scan both with the same measures."
        )
    old, new = diagnose(before, thresholds), diagnose(after, thresholds)
    return Comparison(
        before=before.provenance,
        after=after.provenance,
        changes=tuple(sorted(_changes(before, after, shared), key=_largest_first)),
        appeared=_without(new, old),
        disappeared=_without(old, new),
        only_before=tuple(sorted({k.measure for k in before.cells} - {k.measure for k in after.cells})),
        only_after=tuple(sorted({k.measure for k in after.cells} - {k.measure for k in before.cells})),
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


def _contents(survey: Survey) -> str:
    if not survey.cells:
        return "nothing"
    return f"{', '.join(sorted({k.measure for k in survey.cells}))} in {', '.join(survey.stacks)}"
