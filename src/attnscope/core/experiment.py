"""Experiments test the claims of a paper. Each claim has a rule that measured numbers can break.

    CLAIMS = claims("2103.03404", '''
        sort_learned: An attention-only model with skips learns to sort.
            expected: accuracy of at least .95 (the paper: .98)
            holds: sort_accuracy >= 0.95
    ''')

    @experiment(title=..., paper="2103.03404", summary=..., advice=...,
                presets={"quick": Params(), "paper": Params(...)}, takes={"quick": "40 s", "paper": "1 h"},
                seeds={"quick": 1, "paper": 5}, claims=CLAIMS)
    def dong2021(params: Params, seeds: tuple[int, ...], session: Session) -> Result:

Verdicts are computed, never typed. Each quantity is measured once per seed, and a bound must hold for the median over
seeds. `given` bounds state the conditions of a comparison (that the baseline learned): if they are not met, the claim
is not judged. This module does not import torch, so results can be read, judged and drawn on a machine without it.
"""

from __future__ import annotations

import math
import operator
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal, NotRequired, Protocol, TypedDict, Unpack, get_args, runtime_checkable

from attnscope.core.ranges import INFINITE, NAN, AtLeast, Finite

Relation = Literal["<", "<=", ">=", ">"]
Verdict = Literal["reproduced", "not reproduced", "contradicted", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
PRESETS = ("quick", "paper")

Number = float | int | None
Measured = Mapping[str, Sequence[Number]]
"""One number per seed for every quantity; None stands for a number that is not finite."""

_COMPARE: Mapping[Relation, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Bound:
    """The condition `median over seeds of quantity <relation> limit`. NaN breaks every bound."""

    quantity: str
    relation: Relation
    limit: float

    def holds(self, measured: Measured) -> bool:
        return _COMPARE[self.relation](median(measured[self.quantity]), self.limit)

    def __str__(self) -> str:
        return f"{self.quantity} {self.relation} {self.limit:g}"

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Read `accuracy >= 0.95`; raise `ValueError` for anything else."""
        for relation in _COMPARE:
            quantity, separator, limit = text.rpartition(f" {relation} ")
            if separator:
                return cls(quantity, relation, float(limit))
        raise ValueError(f"'{text}' is not a quantity, a relation and a limit")


def median(values: Sequence[Number]) -> float:
    """Return the median, or NaN if any value is missing: a broken seed must not hide behind the others."""
    numbers = [math.nan if value is None else float(value) for value in values]
    return math.nan if not numbers or any(map(math.isnan, numbers)) else statistics.median(numbers)


@dataclass(frozen=True)
class Claim:
    """One statement of a paper, with the rule that decides whether it was reproduced.

    Reproduced: every bound of `holds` is met. Contradicted: every bound of `fails` is met (without `fails` a claim is
    at worst not reproduced). Not run: a number is missing, or a bound of `given` is not met; models that learned
    nothing, for example, cannot be compared.
    """

    name: str
    paper: str
    statement: str
    expected: str
    holds: tuple[Bound, ...]
    fails: tuple[Bound, ...] = ()
    given: tuple[Bound, ...] = ()
    measured: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)

    @property
    def quantities(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(bound.quantity for bound in (*self.holds, *self.fails, *self.given)))

    def judged(self, measured: Measured) -> Claim:
        """Return the claim with the measured numbers of its quantities."""
        return replace(self, measured={name: tuple(measured[name]) for name in self.quantities if name in measured})

    @property
    def verdict(self) -> Verdict:
        if not all(self.measured.get(name) for name in self.quantities) or self.missing:
            return "not run"
        if all(bound.holds(self.measured) for bound in self.holds):
            return "reproduced"
        if self.fails and all(bound.holds(self.measured) for bound in self.fails):
            return "contradicted"
        return "not reproduced"

    @property
    def missing(self) -> tuple[Bound, ...]:
        """The bounds of `given` that the numbers do not meet."""
        return tuple(b for b in self.given if self.measured.get(b.quantity) and not b.holds(self.measured))

    @property
    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.measured.items()}


_NAME = re.compile(r"(\w+)(?: \[([\d.]+)\])?: (.+)")
_FIELDS = re.compile(r";? (expected|holds|fails|given): ")


def claims(paper: str, *texts: str) -> tuple[Claim, ...]:
    """Read claims written as text.

        name: The statement.
            expected: what the rule says, in words
            holds: accuracy >= 0.95, loss <= 0.1; fails: accuracy <= 0.2
            given: baseline >= 0.1

    A line that is not indented starts a claim, indented lines continue it. `name [2412.02975]:` cites another paper.
    `fails` and `given` are optional; bounds are separated by commas.
    """
    lines = [line for text in texts for line in dedent(text).splitlines() if line.strip()]
    starts = [*(i for i, line in enumerate(lines) if not line.startswith(" ")), len(lines)]
    read = []
    for start, end in pairwise(starts):
        first, *parts = _FIELDS.split(" ".join(line.strip() for line in lines[start:end]))
        words = dict(zip(parts[::2], parts[1::2], strict=True))
        head = _NAME.fullmatch(first)
        if head is None or not {"expected", "holds"} <= set(words):
            raise ValueError(f"'{first}' is not a claim with a name, a statement, what is expected and when it holds")
        name, other, statement = head.groups()
        expected = words.pop("expected")
        rule: dict[str, Any] = {key: tuple(map(Bound.parse, bounds.split(", "))) for key, bounds in words.items()}
        read.append(Claim(name, other or paper, statement, expected, **rule))
    return tuple(read)


@dataclass(frozen=True)
class Point:
    """One point of a figure: x is a position on an axis or the name of a bar. NaN is a missing number."""

    x: float | int | str
    y: Annotated[Finite, NAN, INFINITE]
    series: str
    panel: str = ""
    low: Annotated[Finite, NAN, INFINITE] = math.nan  # the band around y runs from low to high; NaN if there is no band
    high: Annotated[Finite, NAN, INFINITE, AtLeast("low")] = math.nan
    dashed: bool = False  # a reference for comparison

    @classmethod
    def over(
        cls, values: Sequence[Number], x: float | int | str, series: str, panel: str = "", dashed: bool = False
    ) -> Point:
        """Return the median over seeds with a band from the smallest to the largest; NaN if any value is missing."""
        middle = median(values)
        finite = [math.nan] if math.isnan(middle) else [float(value) for value in values if value is not None]
        return cls(x, middle, series, panel, min(finite), max(finite), dashed)


@dataclass(frozen=True)
class Figure:
    """A chart as plain data.

    `curves` are lines with a band from low to high. `bars` are side by side. `tracks` join points in the order
    of their rows. A `table` has a row for every x and a column for every series. A logarithmic figure draws
    y <= 0 below its smallest positive y.
    """

    name: str
    title: str
    caption: str
    x: str
    y: str
    rows: tuple[Point, ...]
    kind: Literal["curves", "bars", "tracks", "table"] = "curves"
    log: bool = False
    log_x: bool = False


@dataclass(frozen=True)
class Result:
    """The result of an experiment. Claims are judged by `measured`; `records` holds the numbers it was computed
    from."""

    measured: Measured
    records: tuple[Mapping[str, Any], ...] = ()
    figures: tuple[Figure, ...] = ()
    remarks: tuple[str, ...] = ()


@runtime_checkable
class Session(Protocol):
    """A run of an experiment: it reports progress and saves finished parts."""

    def advance(self, stage: str, done: int, total: int) -> None: ...

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        """Return the plain data that `work` returns, or the data that an earlier run saved for this part."""

    def state_path(self, name: str) -> Path | None:
        """Return where unfinished work may save its state, or None if nothing is saved."""


class UnsavedSession:
    """A session that saves nothing, for notebooks and tests."""

    def advance(self, stage: str, done: int, total: int) -> None:
        pass

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        return work()

    def state_path(self, name: str) -> Path | None:
        return None


@dataclass(frozen=True)
class ExperimentCard:
    """Description of an experiment, readable without importing it."""

    name: str
    title: str
    paper: str
    summary: str
    takes: Mapping[str, str]
    seeds: Mapping[str, int]
    claims: tuple[Claim, ...]
    advice: str = ""


Function = Callable[[Any, tuple[int, ...], Session], Result]


@dataclass(frozen=True)
class Experiment:
    """A registered experiment.

    For each preset, `takes` says how long a run takes on one core, and `seeds` the default number of seeds. `advice`
    says what people who train or change models should conclude from the recorded verdicts.
    """

    name: str
    title: str
    paper: str
    summary: str
    presets: Mapping[str, Any]
    takes: Mapping[str, str]
    claims: tuple[Claim, ...]
    seeds: Mapping[str, int]
    function: Function
    advice: str = ""

    @property
    def card(self) -> ExperimentCard:
        words = self.name, self.title, self.paper, self.summary
        return ExperimentCard(*words, self.takes, self.seeds, self.claims, self.advice)

    def run(self, params: Any, seeds: tuple[int, ...], session: Session) -> Result:
        return self.function(params, seeds, session)

    def judged(self, result: Result) -> tuple[Claim, ...]:
        return tuple(claim.judged(result.measured) for claim in self.claims)


class ExperimentFields(TypedDict):
    """The fields of an `Experiment` that its file declares."""

    title: str
    paper: str
    summary: str
    presets: Mapping[str, Any]
    takes: Mapping[str, str]
    claims: tuple[Claim, ...]
    seeds: Mapping[str, int]
    advice: NotRequired[str]


def experiment(**declared: Unpack[ExperimentFields]) -> Callable[[Function], Experiment]:
    """Turn a function into an experiment. The names of the function, the experiment and the file are the same."""

    def register(function: Function) -> Experiment:
        made = Experiment(name=function.__name__, function=function, **declared)
        if any(tuple(by_preset) != PRESETS for by_preset in (made.presets, made.takes, made.seeds)):
            raise TypeError(f"{made.name} must give presets, takes and seeds for {PRESETS}")
        return made

    return register
