"""The record of `paths`: one row per length of path, values of heads, and the largest single paths.

    report.lengths[2].value            what all paths through exactly two heads add to the target
    report.lengths[2].up_to.predicted  what the model says when only lengths 0, 1 and 2 count
    report.head_values[12][5]          Shapley value of head 5 of block 12
    report.goal.word                   the token or class that is decomposed
    report.save("paths.json"); PathReport.load("paths.json")

Numbers that were not computed or do not exist (energies without draws, a loss without next tokens) are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attnscope.core.decoding import Count, FieldError, encode
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

# Sums and means that are written for readers of the file, and checked when read.
_OF_A_ROW, _OF_ALL = ("value", "mean"), ("difference",)


@dataclass(frozen=True)
class Goal:
    """The parts of the target. `PathReport.target` is the same as a sentence."""

    kind: Literal["logit", "difference", "residual_norm", "stream_norm"]
    word: str | None = None  # token or class of the logit; None for norms
    other: str | None = None  # whose logit is subtracted, in a difference
    where: str = ""  # "after the last token", "at token 3"; empty for the whole text


@dataclass(frozen=True)
class Prediction:
    """The model's answer if only some paths count, with frozen norms."""

    value: float  # of the target
    predicted: str | None  # token or class; None for states
    probability: float | None  # of the prediction
    target_probability: float | None
    loss: float | None  # mean next-token loss in nats, of causal language models
    distance: float  # relative, from the model's own output


@dataclass(frozen=True)
class LengthRow:
    """All paths with `length` attention edges."""

    length: int
    stream: float  # from the input
    constants: float  # from biases and shifts of norms
    paths: Count  # how many begin at the input
    residual: float | None  # relative residual of their sum; None for a single token
    residual_share: float | None  # of what tells tokens apart in the last stream
    energy: float | None  # sum of squares of what the single paths from the input contribute
    energy_error: float | None  # its standard error
    up_to: Prediction  # lengths up to this one
    without: Prediction  # all lengths but this one

    @property
    def value(self) -> float:
        return self.stream + self.constants

    @property
    def mean(self) -> float:
        """The mean contribution of a path of this length to the target."""
        return self.stream / self.paths if self.paths else 0.0


@dataclass(frozen=True)
class Chain:
    """One path from the input: its heads from first to last, and the token that sends most along it."""

    contribution: float
    heads: tuple[tuple[int, int], ...]  # (layer, head)
    position: int
    token: str
    of_token: float  # contribution of that token


@dataclass(frozen=True)
class Players:
    """Shapley values with MLPs as players; they add up to `everything - nothing`."""

    heads: tuple[tuple[float, ...], ...]
    mlps: tuple[tuple[float, ...], ...]
    nothing: float
    everything: float


@dataclass(frozen=True, repr=False)
class PathReport(Record):
    """The decomposition of one target on one text."""

    KIND: ClassVar[str] = "paths"
    COMMAND: ClassVar[str] = "paths"
    FILE: ClassVar[str] = "paths.json"

    model: str
    class_name: str
    stack: str
    text: str
    tokens: tuple[str, ...]
    target: str  # in words
    output: str  # "tokens", "classes" or "states"
    position: int | None
    dtype: str
    value: float  # the target, from the model's own output
    total: float  # the sum over all lengths and sources
    linear_difference: float  # largest relative error of a block's linear form
    lengths: tuple[LengthRow, ...]
    whole_residual: float | None
    head_lengths: tuple[tuple[tuple[float, ...], ...], ...]  # layer, head, length
    head_values: tuple[tuple[float, ...], ...]
    edges: tuple[float, ...] | None  # value by number of edges of both kinds, attention and MLP
    players: Players | None
    top: tuple[Chain, ...]
    top_exact: bool  # no path outside `top` is larger
    top_missed: float  # bound on paths outside `top`; an estimate unless `top_exact`
    draws: int  # behind the energies
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    goal: Goal | None = None  # None in files of earlier versions

    @property
    def difference(self) -> float:
        """Distance of the sum over lengths from the model's own number."""
        return abs(self.total - self.value)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with derived sums and means beside them."""
        document = super().to_json()
        for row, own in zip(document["lengths"], self.lengths, strict=True):
            row |= {name: encode(getattr(own, name)) for name in _OF_A_ROW}
        return {**document, **{name: encode(getattr(self, name)) for name in _OF_ALL}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PathReport:
        """Read what `to_json` returned; raise a `FieldError` for wrong fields and sums."""
        rows = data.get("lengths")
        bare = [_without(row, _OF_A_ROW) for row in rows] if isinstance(rows, list) else rows
        found = super().from_json({**_without(data, _OF_ALL), **({} if rows is None else {"lengths": bare})})
        found._check_shapes()
        assert isinstance(rows, list)
        for k, (row, own) in enumerate(zip(rows, found.lengths, strict=True)):
            _check_derived(row, own, _OF_A_ROW, f"lengths[{k}].")
        _check_derived(data, found, _OF_ALL, "")
        return found

    def _check_shapes(self) -> None:
        """Raise a `FieldError` unless charts can look numbers up by length, block and head."""
        if [row.length for row in self.lengths] != list(range(len(self.lengths))) or not self.lengths:
            raise FieldError("lengths: a row for every length, 0, 1 and so on, is needed")
        if [len(layer) for layer in self.head_lengths] != [len(layer) for layer in self.head_values]:
            raise FieldError("head_lengths: as many heads in every block as in head_values are needed")
        if any(len(head) < len(self.lengths) for layer in self.head_lengths for head in layer):
            raise FieldError("head_lengths: a number for every length is needed")

    def table(self) -> pandas.DataFrame:
        """Return a row per length: its contribution, and predictions with lengths up to it and without it."""
        import pandas

        own = ("length", "paths", "value", "stream", "constants", "mean")
        maybe = ("residual", "residual_share", "energy", "energy_error")
        rows = [
            {name: getattr(row, name) for name in own}
            | {name: _number(getattr(row, name)) for name in maybe}
            | _columns(row.up_to, "up_to_")
            | _columns(row.without, "without_")
            for row in self.lengths
        ]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        return f"<PathReport of {self.model}: {self.target} = {self.value:.4g}, {len(self.lengths)} lengths>"


def _without(thing: Any, names: tuple[str, ...]) -> Any:
    """Return a mapping without some keys. Anything else is returned as it is, for decoding to refuse."""
    return {name: value for name, value in thing.items() if name not in names} if isinstance(thing, Mapping) else thing


def _check_derived(data: Mapping[str, Any], read: object, names: tuple[str, ...], place: str) -> None:
    for name in names:
        if name in data and data[name] != encode(getattr(read, name)):
            raise FieldError(f"{place}{name}: it does not follow from the fields beside it")


def _columns(said: Prediction, prefix: str) -> dict[str, Any]:
    values = {one.name: getattr(said, one.name) for one in fields(said)}
    return {f"{prefix}{name}": value if name == "predicted" else _number(value) for name, value in values.items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else value
