"""The record of `treat`: a model before, after training (control), and after the same training with a remedy.

    found = attnscope.treat("pocket", remedy="gated_output")
    found.loss                          treated against control: mean difference of held-out loss, with its interval
    found.outcomes                      every finding in the three arms, and what became of it
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
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.treat.outcomes import Outcome, outcomes_of
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.reports.record import Record
from attnscope.stats.intervals import Interval, paired_interval

if TYPE_CHECKING:
    import pandas

ARMS = ("before", "control", "treated")


@dataclass(frozen=True)
class Chosen:
    """Which remedy, and why. `alternatives` are other remedies for the same finding."""

    name: str
    title: str
    summary: str
    citation: str
    why: str
    asked: bool  # by name; else from the table of remedies
    answers: tuple[str, ...] = ()  # kinds of findings that it is meant for
    alternatives: tuple[str, ...] = ()
    keeps: bool = True  # whether it starts from the same function
    settings: dict[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] = ()  # blocks that were changed
    heads: tuple[int, ...] = ()  # of each block; empty: all


@dataclass(frozen=True)
class Training:
    """How the control and the treated model were trained."""

    steps: int
    rate: float
    batch_size: int
    max_tokens: int
    seed: int
    parameters: str  # "all", or "added": new ones and the projections of treated blocks
    trained: int  # numbers trained in the control
    added: int  # numbers that the remedy adds
    tokens: int  # read in training, by each arm


@dataclass(frozen=True)
class Arm:
    losses: tuple[float, ...]  # held-out loss of every sequence, nats per token
    curve: tuple[float, ...] = ()  # training loss of every step
    seconds: float = math.nan  # median time of a training step; NaN without training
    quartiles: tuple[float, ...] = ()  # of the time of a step; empty: too few steps

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


@dataclass(frozen=True)
class Order:
    """One order of taking heads out: `heads` as (block, head), `losses` at the counts of its `Pruning`."""

    name: str  # "value", "contribution" or "random"
    title: str
    heads: tuple[tuple[int, int], ...]
    losses: tuple[float, ...]
    low: tuple[float, ...] = ()  # lowest and highest over several random orders
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Pruning:
    """Held-out loss against the number of heads taken out, in several orders."""

    counts: tuple[int, ...]
    orders: tuple[Order, ...]
    removed: int  # heads that the treated model lacks
    by: str  # the order they were taken out in
    total: int
    prompts: int  # texts behind the values
    asked: str  # "12 heads", "loss within 0.05"


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
    texts: tuple[int, ...] = ()  # text of each held-out sequence; empty: all different
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
        """Held-out loss of treated minus baseline, paired by sequence, with a 95% interval over texts."""
        return self.loss_between(self.baseline, "treated")

    def loss_between(self, one: str, other: str) -> Interval:
        """Return the held-out loss of arm `other` minus that of arm `one`."""
        return paired_interval(self.arms[one].losses, self.arms[other].losses, self.texts)

    @property
    def slowdown(self) -> float:
        """Time of a training step, divided by the control's; NaN if too few steps were timed."""
        control, treated = self.arms.get("control"), self.arms["treated"]
        if control is None or not control.quartiles or not treated.quartiles:
            return math.nan
        return treated.seconds / control.seconds

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every finding of any arm. Findings that the remedy answers come first."""
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
        found = cls(**fields, surveys=surveys, by_text=_by_text(data.get("by_text", {})))
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
    start: float
    texts: tuple[int, ...] = ()
    pruning: Pruning | None = None
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)


def _surveys(given: object) -> dict[str, Survey]:
    if not isinstance(given, Mapping) or not given:
        raise FieldError("surveys: there is none")
    read = {}
    for name, held in given.items():
        if not isinstance(held, Mapping) or held.get("version") != Survey.VERSION:
            raise FieldError(f"surveys['{name}']: not a survey of version {Survey.VERSION}")
        try:
            read[name] = Survey.from_json(held)
        except FieldError as error:
            raise FieldError(f"surveys['{name}'].{error}") from error
    return read


def _by_text(given: object) -> dict[str, ByText]:
    if not isinstance(given, Mapping):
        raise FieldError("by_text: not a mapping from arms")
    try:
        return {str(name): ByText.from_json(held) for name, held in given.items()}
    except (TypeError, ValueError, KeyError) as error:
        raise FieldError(f"by_text: {error}") from error


def _refuse_what_does_not_fit_together(found: Treatment) -> None:
    """Raise a `FieldError` for fields that contradict each other."""
    names = tuple(found.arms)
    if names not in (ARMS, ("before", "treated")):
        raise FieldError(f"arms: {', '.join(names) or 'none'} are not before, control and treated")
    if tuple(found.surveys) != names:
        raise FieldError("surveys: not one for every arm")
    if found.by_text and tuple(found.by_text) != names:
        raise FieldError("by_text: not one for every arm")
    lengths = {len(arm.losses) for arm in found.arms.values()}
    if lengths == {0} or len(lengths) > 1:
        raise FieldError("arms: not every arm was asked about the same sequences")
    if found.texts and {len(found.texts)} != lengths:
        raise FieldError("texts: not one for every held-out sequence")
    if ("control" in names) != (found.training is not None):
        raise FieldError("training: a control is there where there was training, and only there")
    for arm in found.arms.values():
        if not all(math.isfinite(loss) for loss in arm.losses):
            raise FieldError("arms: a held-out loss is not a number")
    if found.pruning is not None:
        _refuse_odd_pruning(found.pruning)


def _refuse_odd_pruning(pruning: Pruning) -> None:
    if not pruning.counts or not pruning.orders:
        raise FieldError("pruning: it has no curve")
    for number, order in enumerate(pruning.orders):
        if any(len(one) not in (0, len(pruning.counts)) for one in (order.low, order.high)) or len(order.losses) != len(
            pruning.counts
        ):
            raise FieldError(f"pruning.orders[{number}]: not a loss at every count")
        if len(order.low) != len(order.high):
            raise FieldError(f"pruning.orders[{number}]: low and high are not of one length")
