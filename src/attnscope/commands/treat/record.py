"""The record of `treat`: a model before, after training (control), and after the same training with a remedy.

    found = attnscope.treat("pocket", remedy="gated_output")
    found.loss                          mean difference of held-out loss, treated minus control, with its interval
    found.outcomes                      every finding in the three arms, and whether the remedy helped
    found.arms["treated"].losses        held-out loss of every sequence

Remedies without training have no control: the treated model is compared with the model before. The file holds the
surveys of all arms; outcomes are computed again when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.commands.compare.chance import ByText, Reading, without_heads
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.possible import check_means
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.treat.outcomes import Outcome, outcomes_of
from attnscope.commands.treat.pruning_record import Pruning, refuse_odd_pruning
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.ranges import Count, Index, Positive, Provenance, Several, Size, SizeOrNan
from attnscope.reports.record import Record
from attnscope.stats.intervals import Interval, paired_interval

if TYPE_CHECKING:
    import pandas

ARMS = ("before", "control", "treated")


@dataclass(frozen=True)
class Chosen:
    """The remedy and the reason for it. `alternatives` are other remedies for the same finding."""

    name: str
    title: str
    summary: str
    citation: str
    why: str
    asked: bool  # whether the caller named it; else it is from the table of remedies
    answers: tuple[str, ...] = ()  # kinds of findings that it is meant for
    alternatives: tuple[str, ...] = ()
    keeps: bool = True  # whether it does not change the model before training
    settings: dict[str, Any] = field(default_factory=dict)
    layers: tuple[Index, ...] = ()  # blocks that were changed
    heads: tuple[Index, ...] = ()  # heads of each block that were changed; empty: all


@dataclass(frozen=True)
class Training:
    """The training of the control and of the treated model."""

    steps: Several
    rate: Positive
    batch_size: Several
    max_tokens: Several
    seed: int
    parameters: str  # "all", or "added": those of the remedy and the projections of treated blocks
    trained: Count  # number of parameters trained in the control
    added: Count  # number of parameters that the remedy adds
    tokens: Count  # tokens that each arm reads in training


@dataclass(frozen=True)
class Arm:
    losses: tuple[Size, ...]  # held-out loss of every sequence, nats per token
    curve: tuple[SizeOrNan, ...] = ()  # training loss of every step
    seconds: SizeOrNan = math.nan  # median time of a training step; NaN without training
    quartiles: tuple[Size, ...] = ()  # of the time of a step; empty: too few steps

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


@dataclass(frozen=True, repr=False)
class Treatment(Record):
    KIND: ClassVar[str] = "treatment"
    COMMAND: ClassVar[str] = "treat"
    FILE: ClassVar[str] = "treatment.json"
    INDENT: ClassVar[int | None] = None

    model: str
    class_name: str
    remedy: Chosen
    training: Training | None
    arms: dict[str, Arm]
    surveys: dict[str, Survey]
    thresholds: Thresholds
    start: float  # held-out loss of the treated model before its training; NaN without training
    texts: tuple[int, ...] = ()  # index of the text of each held-out sequence; empty: all different
    pruning: Pruning | None = None
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    by_text: dict[str, ByText] = field(default_factory=dict)  # means of every text, by arm

    @property
    def baseline(self) -> str:
        """The arm that the treated model is compared with."""
        return "control" if "control" in self.arms else "before"

    @property
    def loss(self) -> Interval:
        """Held-out loss of the treated arm minus the baseline's, paired by sequence, with a 95% interval over texts."""
        return self.loss_between(self.baseline, "treated")

    def loss_between(self, one: str, other: str) -> Interval:
        """Return the held-out loss of arm `other` minus the loss of arm `one`."""
        return paired_interval(self.arms[one].losses, self.arms[other].losses, self.texts)

    @property
    def slowdown(self) -> float:
        """The time of a training step divided by its time in the control; NaN if too few steps were timed."""
        control, treated = self.arms.get("control"), self.arms["treated"]
        if control is None or not control.quartiles or not treated.quartiles:
            return math.nan
        return treated.seconds / control.seconds

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every finding of any arm. Findings that the remedy is meant for come first."""
        found = {name: diagnose(survey, self.thresholds) for name, survey in self.surveys.items()}
        if self.pruning is not None:
            # Ignore removed heads in both arms: their removal is not a success.
            found |= {name: without_heads(found[name], self.removed) for name in (self.baseline, "treated")}
        readings = {
            name: Reading(survey, self.by_text.get(name), self.thresholds, self.removed)
            for name, survey in self.surveys.items()
        }
        return outcomes_of(found, self.baseline, self.remedy.answers, readings)

    @property
    def removed(self) -> tuple[tuple[int, int], ...]:
        """The heads that the treated model lacks, as (block, head)."""
        if self.pruning is None:
            return ()
        order = next((one for one in self.pruning.orders if one.name == self.pruning.by), self.pruning.orders[0])
        return order.heads[: self.pruning.removed]

    @property
    def budget_kept(self) -> bool | None:
        """Whether the held-out loss rises by at most the budget, at the upper end of its interval; None without one."""
        if self.pruning is None or math.isnan(self.pruning.budget):
            return None
        return self.loss.high <= self.pruning.budget

    def table(self) -> pandas.DataFrame:
        """Return one row for each arm and held-out sequence."""
        import pandas

        rows = [
            {"arm": name, "sequence": number, "loss": loss}
            for name, arm in self.arms.items()
            for number, loss in enumerate(arm.losses)
        ]
        return pandas.DataFrame(rows, columns=["arm", "sequence", "loss"])

    def to_json(self) -> dict[str, Any]:
        """Return the numbers and conclusions, without the surveys."""
        data: dict[str, Any] = {
            name: encode(getattr(self, name)) for name in _Fields.__dataclass_fields__ if name != "thresholds"
        }
        concluded = {"loss": encode(self.loss), "outcomes": [encode(one) for one in self.outcomes]}
        return {"format": f"attnscope-{self.KIND}", "version": self.VERSION, **data, **concluded}

    def document(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.to_json().items() if name not in ("loss", "outcomes")}
        surveys = {name: survey.to_json() for name, survey in self.surveys.items()}
        by_text = {name: one.to_json() for name, one in self.by_text.items()}
        return {**kept, "thresholds": asdict(self.thresholds), "surveys": surveys, "by_text": by_text}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Treatment:
        surveys = _surveys(data.get("surveys"))
        read = decode(_Fields, {name: value for name, value in data.items() if name not in _BESIDE})
        fields = {name: getattr(read, name) for name in _Fields.__dataclass_fields__}
        found = cls(**fields, surveys=surveys, by_text=_by_text(data.get("by_text", {}), surveys))
        _refuse_what_does_not_fit_together(found)
        return found

    def __repr__(self) -> str:
        told = self.loss
        return (
            f"<Treatment of {self.model[-60:]} with {self.remedy.name}: held-out loss {told.mean:+.3g} "
            f"({told.low:+.3g} to {told.high:+.3g}) against {self.baseline}>"
        )


_BESIDE = ("format", "version", "sentences", "files", "chart", "surveys", "by_text", "loss", "outcomes")


@dataclass(frozen=True)
class _Fields:
    """All fields but the surveys."""

    model: str
    class_name: str
    remedy: Chosen
    training: Training | None
    arms: dict[str, Arm]
    thresholds: Thresholds
    start: SizeOrNan
    texts: tuple[Count, ...] = ()
    pruning: Pruning | None = None
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)


def _surveys(given: object) -> dict[str, Survey]:
    if not isinstance(given, Mapping) or not given:
        raise FieldError("surveys: at least one is needed")
    read = {}
    for name, held in given.items():
        if not isinstance(held, Mapping) or held.get("version") != Survey.VERSION:
            raise FieldError(f"surveys['{name}']: not a survey of version {Survey.VERSION}")
        try:
            read[name] = Survey.from_json(held)
        except FieldError as error:
            raise FieldError(f"surveys['{name}'].{error}") from error
    return read


def _by_text(given: object, surveys: Mapping[str, Survey]) -> dict[str, ByText]:
    if not isinstance(given, Mapping):
        raise FieldError("by_text: not a mapping from arms")
    try:
        read = {str(name): ByText.from_json(held) for name, held in given.items()}
        for name, texts in read.items():
            for key, means in texts.means.items() if name in surveys else ():
                if key not in surveys[name].cells:
                    raise FieldError(f"{key.measure} at block {key.layer} is not in the survey of {name}")
                check_means(key, surveys[name].cards[key.measure], means)
    except (TypeError, ValueError, KeyError) as error:
        raise FieldError(f"by_text: {error}") from error
    return read


def _refuse_what_does_not_fit_together(record: Treatment) -> None:
    """Raise a `FieldError` for fields that contradict each other."""
    names = tuple(record.arms)
    if names not in (ARMS, ("before", "treated")):
        raise FieldError(f"arms: {', '.join(names) or 'none'} are not before, control and treated")
    if tuple(record.surveys) != names:
        raise FieldError("surveys: one for every arm is needed")
    if record.by_text and tuple(record.by_text) != names:
        raise FieldError("by_text: one for every arm is needed")
    lengths = {len(arm.losses) for arm in record.arms.values()}
    if lengths == {0} or len(lengths) > 1:
        raise FieldError("arms: all need losses of the same sequences")
    if record.texts and {len(record.texts)} != lengths:
        raise FieldError("texts: one for every held-out sequence is needed")
    if ("control" in names) != (record.training is not None):
        raise FieldError("training: it is needed with a control, and only then")
    for arm in record.arms.values():
        if not all(math.isfinite(loss) for loss in arm.losses):
            raise FieldError("arms: a held-out loss is not a number")
    if record.pruning is not None:
        refuse_odd_pruning(record.pruning)
