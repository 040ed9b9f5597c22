"""The record of a comparison: surveys compared with the first one as the baseline. No torch here.

losses     the loss of every model, and its difference with an interval (`losses`)
partings   the first block and half at which two models differ (`parting`)
weights    the tensors that differ, if the models were at hand (`weights`)
changes    every number that differs, by effect (`differences`)
findings   the findings of both sides in pairs (`paired_findings`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.commands.compare.differences import Change, changes_between
from attnscope.commands.compare.losses import LossChange, loss_change
from attnscope.commands.compare.paired_findings import FindingChange, paired_findings, told_first
from attnscope.commands.compare.parting import Parting, parting
from attnscope.commands.compare.weights import WeightsChange
from attnscope.commands.records import opened
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.decoding import FieldError, decode, encode, plain
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Finding, Severity
from attnscope.core.words import count
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Comparison(Record):
    """Two surveys or more, each compared with the first.

    `changes` are sorted by effect, largest first; `findings` start with those that got worse. The file holds the
    surveys, the thresholds and the weights that differ, and everything else is computed from them when it is read.
    """

    KIND: ClassVar[str] = "comparison"
    COMMAND: ClassVar[str] = "compare"
    FILE: ClassVar[str] = "comparison.json"
    INDENT: ClassVar[int | None] = None

    surveys: tuple[Survey, ...]
    thresholds: Thresholds
    losses: tuple[LossChange, ...]  # of surveys with a trial
    partings: tuple[Parting, ...]  # of surveys of the same tokens as the first
    weights: tuple[WeightsChange, ...]  # of models that were at hand
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
        return tuple(pair.after for pair in self.findings if pair.before is None and pair.after is not None)

    @property
    def disappeared(self) -> tuple[Finding, ...]:
        return tuple(pair.before for pair in self.findings if pair.after is None and pair.before is not None)

    @property
    def only_before(self) -> tuple[str, ...]:
        """Measures of the first survey that another survey lacks."""
        return _lacking(self.first, self.surveys[1:])

    @property
    def only_after(self) -> tuple[str, ...]:
        return tuple(sorted({name for other in self.surveys[1:] for name in _lacking(other, (self.first,))}))

    @property
    def parting(self) -> Parting | None:
        """Where the second model parts from the first; None if they did not read the same tokens."""
        return next((found for found in self.partings if found.survey == 1), None)

    def regressions(self, severity: Severity = "wrong") -> tuple[FindingChange, ...]:
        """Return the findings that are at least this severe, and new or further beyond their threshold."""
        return tuple(pair for pair in self.findings if pair.regressed(severity))

    def worse(self, severity: Severity = "wrong") -> bool:
        """Return whether a loss rose by more than chance, or a finding of at least this severity is new or worse."""
        return any(loss.worse or loss.future for loss in self.losses) or bool(self.regressions(severity))

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
                "losses": [asdict(loss) for loss in self.losses],
                "partings": [asdict(found) for found in self.partings],
                "weights": [asdict(change) for change in self.weights],
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
            **({"weights": encode(self.weights)} if self.weights else {}),
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
        try:
            weights = decode(tuple[WeightsChange, ...], data.get("weights", []))
        except FieldError as error:
            raise FieldError(f"weights{error}") from error
        return compare(*surveys, thresholds=decode(Thresholds, data.get("thresholds")), weights=weights)

    def __repr__(self) -> str:
        names = [str((one.provenance.get("model") or {}).get("name", "unnamed model")) for one in self.surveys]
        told = f"{names[0][-60:]} with {names[1][-60:]}" if len(names) == 2 else f"{len(names)} surveys"
        became = {
            status: sum(pair.status == status for pair in self.findings)
            for status in ("new", "worse", "better", "gone", "changed")
        }
        found = ", ".join(f"{n} {status}" for status, n in became.items())
        return f"<Comparison of {told}: findings {found}; {count(len(self.changes), 'number')} changed>"


def compare(
    *surveys: Survey | str | Path, thresholds: Thresholds | None = None, weights: Sequence[WeightsChange] = ()
) -> Comparison:
    """Compare surveys, or the files of surveys, with the first one. `attnscope.compare` takes models too.

    Places are matched by measure, part, stack, site, block and head. Places that one survey lacks are skipped.
    `weights` are the tensors that differ, where the models were at hand.
    """
    if len(surveys) < 2:
        raise RefusalError("A comparison needs two surveys or more: give another one.")
    read = tuple(opened(survey, Survey) for survey in surveys)
    chosen = thresholds or Thresholds()
    diagnosed = [diagnose(survey, chosen) for survey in read]
    changes: list[Change] = []
    losses, partings, unchanged = [], [], 0
    for index, other in enumerate(read[1:], 1):
        differing, same = changes_between(read[0], other, index)
        changes += differing
        unchanged += same
        loss = loss_change(read[0], other, index)
        losses.append(loss)
        partings.append(parting(read[0], other, loss, index))
    findings = [
        pair for index in range(1, len(read)) for pair in paired_findings(diagnosed[0], diagnosed[index], survey=index)
    ]
    return Comparison(
        surveys=read,
        thresholds=chosen,
        losses=tuple(loss for loss in losses if loss is not None),
        partings=tuple(found for found in partings if found is not None),
        weights=tuple(weights),
        changes=tuple(sorted(changes, key=_largest_first)),
        unchanged=unchanged,
        findings=tuple(sorted(findings, key=told_first)),
    )


def _largest_first(change: Change) -> tuple[Any, ...]:
    place = (change.measure, change.part, change.stack, change.site, change.layer, change.head or 0)
    return (-abs(change.effect), change.survey, *place)


def _lacking(survey: Survey, others: Sequence[Survey]) -> tuple[str, ...]:
    """Return the measures of a survey that one of the others lacks."""
    own = {key.measure for key in survey.cells}
    return tuple(sorted({name for other in others for name in own - {key.measure for key in other.cells}}))
