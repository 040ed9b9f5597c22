"""The record of `paths`: one row per length of path, values of heads, and the largest single paths.

    report.lengths[2].value            the contribution of all paths through exactly two heads
    report.lengths[2].up_to.predicted  the prediction with only the lengths 0, 1 and 2
    report.head_values[12][5]          Shapley value of head 5 of block 12
    report.effects.heads[0].total      what the target really loses without a head (`effect_record`)
    report.goal.word                   the token or class that is decomposed
    report.save("paths.json"); PathReport.load("paths.json")

Numbers that were not computed or do not exist (energies without draws, a loss without next tokens) are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from attnscope.commands.paths.effect_record import Effects
from attnscope.core.decoding import FieldError, encode
from attnscope.core.ranges import INFINITE, NAN, Count, Finite, Huge, Index, Probability, Provenance, Size, adds_up
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

OfHead = Annotated[Finite, NAN, INFINITE]  # pages draw a head that overflowed
# Derived sums and means, written for readers of the file and checked when it is read.
_OF_A_ROW, _OF_ALL = ("value", "mean"), ("difference",)


@dataclass(frozen=True)
class Goal:
    """The parts of the target, which `PathReport.target` has in words."""

    kind: Literal["logit", "difference", "residual_norm", "stream_norm"]
    word: str | None = None  # token or class of the logit; None for norms
    other: str | None = None  # whose logit is subtracted, in a difference
    where: str = ""  # "after the last token", "at token 3"; empty for the whole text


@dataclass(frozen=True)
class Prediction:
    """The model's prediction with only some of the paths, with frozen norms."""

    value: Finite  # of the target
    predicted: str | None  # token or class; None for states
    probability: Probability | None  # of the prediction
    target_probability: Probability | None
    loss: Size | None  # mean next-token loss in nats, of causal language models
    distance: Size  # relative, from the model's own output


@dataclass(frozen=True)
class LengthRow:
    """All paths with `length` attention edges."""

    length: Count
    stream: Finite  # from the input
    constants: Finite  # from biases and shifts of norms
    paths: Huge  # how many begin at the input
    residual: Size | None  # relative residual of their sum; None for a single token
    residual_share: Finite | None  # by projection: their share of the differences between tokens in the last stream
    energy: Size | None  # sum of the squared contributions of single paths from the input
    energy_error: Size | None  # its standard error
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
    """One path from the input: its heads from first to last, and the token that contributes most along it."""

    contribution: Finite
    heads: tuple[tuple[Index, Index], ...]  # (layer, head)
    position: Index
    token: str
    of_token: Finite  # contribution of that token


@dataclass(frozen=True)
class Players:
    """Shapley values with MLPs as players; they add up to `everything - nothing`."""

    heads: tuple[tuple[Finite, ...], ...]
    mlps: tuple[tuple[Finite, ...], ...]
    nothing: Finite
    everything: Finite


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
    position: Index | None
    dtype: str
    value: Finite  # the target, from the model's own output
    total: Finite  # the sum over all lengths and sources
    linear_difference: Size  # largest relative error of a block's linear form
    lengths: tuple[LengthRow, ...]
    whole_residual: Size | None
    head_lengths: tuple[tuple[tuple[OfHead, ...], ...], ...]  # layer, head, length
    head_values: tuple[tuple[OfHead, ...], ...]
    edges: tuple[Finite, ...] | None  # contribution by number of edges, attention and MLP counted together
    players: Players | None
    top: tuple[Chain, ...]
    top_exact: bool  # no path outside `top` is larger
    top_missed: Annotated[Size, INFINITE]  # bound on paths outside `top`; an estimate unless `top_exact`
    draws: Count  # number of random signs behind the energies
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)
    goal: Goal | None = None  # None in files of earlier versions
    effects: Effects | None = None  # None if no head was taken out, and in files of earlier versions

    @property
    def difference(self) -> float:
        """The distance between the sum over lengths and the model's own number."""
        return abs(self.total - self.value)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and derived sums and means."""
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
        """Raise a `FieldError` unless there is a number for every length, block and head."""
        if [row.length for row in self.lengths] != list(range(len(self.lengths))) or not self.lengths:
            raise FieldError("lengths: a row for every length from 0 on is needed")
        if [len(layer) for layer in self.head_lengths] != [len(layer) for layer in self.head_values]:
            raise FieldError("head_lengths: as many heads in every block as in head_values are needed")
        if any(len(head) < len(self.lengths) for layer in self.head_lengths for head in layer):
            raise FieldError("head_lengths: a number for every length is needed")
        if not adds_up((row.value for row in self.lengths), self.total):
            raise FieldError("total: the sum over all lengths is needed")
        if self.edges is not None and not adds_up(self.edges, self.total):
            raise FieldError("edges: numbers that sum to total are needed")
        if self.position is not None and self.position >= len(self.tokens):
            raise FieldError(f"position: one of {len(self.tokens)} tokens is needed")
        for number, chain in enumerate(self.top):
            if chain.position >= len(self.tokens):
                raise FieldError(f"top[{number}].position: one of {len(self.tokens)} tokens is needed")
            if any(b >= len(self.head_values) or h >= len(self.head_values[b]) for b, h in chain.heads):
                raise FieldError(f"top[{number}].heads: blocks and heads of head_values are needed")

        self._check_effects()

    def _check_effects(self) -> None:
        """Raise a `FieldError` unless effects belong to heads that exist, and their parts add up."""
        found = self.effects
        if found is None:
            return
        places = [one.place for one in found.heads]
        places += [place for edge in found.edges for place in (edge.sender, edge.reader)]
        places += [place for some in found.sets for place in some.heads]
        if any(b >= len(self.head_values) or h >= len(self.head_values[b]) for b, h in places):
            raise FieldError("effects: blocks and heads of head_values are needed")
        if found.of_heads < len(found.heads):
            raise FieldError("effects.of_heads: at least as many as in heads are needed")
        for number, one in enumerate(found.heads):
            parts = [x for x in (one.values, one.patterns, one.norms_and_gates) if x is not None]
            if parts and (len(parts) < 3 or not adds_up(parts, one.total)):
                raise FieldError(f"effects.heads[{number}]: parts that sum to total are needed")

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


def _without(document: Any, names: tuple[str, ...]) -> Any:
    """Return a mapping without some keys. Anything else is returned unchanged; decoding then refuses it."""
    if not isinstance(document, Mapping):
        return document
    return {name: value for name, value in document.items() if name not in names}


def _check_derived(data: Mapping[str, Any], read: object, names: tuple[str, ...], place: str) -> None:
    for name in names:
        if name in data and data[name] != encode(getattr(read, name)):
            raise FieldError(f"{place}{name}: it does not follow from the other fields")


def _columns(prediction: Prediction, prefix: str) -> dict[str, Any]:
    values = {item.name: getattr(prediction, item.name) for item in fields(prediction)}
    return {f"{prefix}{name}": value if name == "predicted" else _number(value) for name, value in values.items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else value
