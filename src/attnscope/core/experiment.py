"""An experiment re-runs what a paper says; a claim is one thing it says, with a rule that measured numbers can break.

    CLAIMS = (
        Claim("sort_learned", "2103.03404", "...", "accuracy >= 0.95", holds=(Bound("sort_accuracy", ">=", 0.95),)),
    )

    @experiment(title=..., paper="2103.03404", summary=..., advice=...,
                presets={"quick": Params(), "paper": Params(...)}, takes={"quick": "40 s", "paper": "1 h"},
                seeds={"quick": 1, "paper": 5}, claims=CLAIMS)
    def dong2021(params: Params, seeds: tuple[int, ...], session: Session) -> Result:

A verdict is never written down: it follows from the numbers. Each quantity is measured once for every seed, and a bound
must hold for the median over seeds; all of them are shown. Where arms are compared, `given` says what the comparison
stands on (a baseline that learned, a phenomenon that is there); without it no verdict is given. Nothing here imports
torch, so results can be read, judged again and drawn where there is none.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

Relation = Literal["<", "<=", ">=", ">"]
Verdict = Literal["reproduced", "not reproduced", "contradicted", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
PRESETS = ("quick", "paper")

Number = float | int | None
Measured = Mapping[str, Sequence[Number]]
"""What was measured: for every quantity one number per seed; None is a number that is not finite."""

_COMPARE: Mapping[Relation, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Bound:
    """`median over seeds of quantity <relation> limit`; a quantity that is not a number breaks it."""

    quantity: str
    relation: Relation
    limit: float

    def holds(self, measured: Measured) -> bool:
        return _COMPARE[self.relation](median(measured[self.quantity]), self.limit)

    def __str__(self) -> str:
        return f"{self.quantity} {self.relation} {self.limit:g}"

    @classmethod
    def parse(cls, text: str) -> Bound:
        """`accuracy >= 0.95`, as `str` gives it; a `ValueError` where it is not that."""
        for relation in _COMPARE:
            quantity, found, limit = text.rpartition(f" {relation} ")
            if found:
                return cls(quantity, relation, float(limit))
        raise ValueError(f"'{text}' is not a quantity, a relation and a limit")


def median(values: Sequence[Number]) -> float:
    """NaN as soon as one value is none: a broken seed must not hide behind the others."""
    numbers = [math.nan if value is None else float(value) for value in values]
    return math.nan if not numbers or any(map(math.isnan, numbers)) else statistics.median(numbers)


@dataclass(frozen=True)
class Claim:
    """One statement of a paper. It is reproduced when all bounds of `holds` are met by what was measured.

    `fails` are the bounds of the opposite: where they are met, the claim is not merely missed but contradicted. Without
    them, missing is all that can be said. `given` are bounds without which the rule says nothing: a model that learned
    nothing is as good as any other such model. A claim any of whose numbers is missing, or what it takes as given is
    not so, was not run.
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
        """The claim beside its numbers."""
        return replace(self, measured={name: tuple(measured[name]) for name in self.quantities if name in measured})

    @property
    def verdict(self) -> Verdict:
        if not all(self.measured.get(name) for name in self.quantities):
            return "not run"
        if self.missing:
            return "not run"
        if all(bound.holds(self.measured) for bound in self.holds):
            return "reproduced"
        if self.fails and all(bound.holds(self.measured) for bound in self.fails):
            return "contradicted"
        return "not reproduced"

    @property
    def missing(self) -> tuple[Bound, ...]:
        """What the claim takes as given and the numbers do not give."""
        return tuple(one for one in self.given if self.measured.get(one.quantity) and not one.holds(self.measured))

    @property
    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.measured.items()}


@dataclass(frozen=True)
class Point:
    """One point of a figure: x is a place on an axis or, of bars, a name. NaN is a number that does not exist."""

    x: float | int | str
    y: float
    series: str
    panel: str = ""
    low: float = math.nan  # the band around y; without one, y itself
    high: float = math.nan
    dashed: bool = False  # there to be compared with

    @classmethod
    def over(
        cls, values: Sequence[Number], x: float | int | str, series: str, panel: str = "", dashed: bool = False
    ) -> Point:
        """The median of the seeds, and the band from the smallest to the largest; NaN as soon as one is missing."""
        middle = median(values)
        known = [math.nan] if math.isnan(middle) else [float(value) for value in values if value is not None]
        return cls(x, middle, series, panel, min(known), max(known), dashed)


@dataclass(frozen=True)
class Figure:
    """A chart as plain data.

    `curves` are lines with a band from low to high, `bars` stand beside each other, `tracks` join points in the order
    of their rows, a `table` has a row for every x and a column for every series. In a logarithmic figure a y of zero or
    less is drawn at the floor.
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
    """What an experiment gives back: `measured` feeds the claims, `records` is every number behind them."""

    measured: Measured
    records: tuple[Mapping[str, Any], ...] = ()
    figures: tuple[Figure, ...] = ()
    remarks: tuple[str, ...] = ()


@runtime_checkable
class Session(Protocol):
    """Where an experiment works: it says how far it is, and what is finished is kept."""

    def advance(self, stage: str, done: int, total: int) -> None: ...

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        """The plain data that `work` returns; from the checkpoint where it was finished before."""

    def state_path(self, name: str) -> Path | None:
        """Where unfinished work of that name may keep its state; None: nowhere."""


class UnsavedSession:
    """A session that keeps nothing: for notebooks and tests."""

    def advance(self, stage: str, done: int, total: int) -> None:
        pass

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        return work()

    def state_path(self, name: str) -> Path | None:
        return None


@dataclass(frozen=True)
class ExperimentCard:
    """What an experiment is about: all that can be told of it without running or importing it."""

    name: str
    title: str
    paper: str
    summary: str
    takes: Mapping[str, str]
    seeds: Mapping[str, int]
    claims: tuple[Claim, ...]
    advice: str = ""


@dataclass(frozen=True)
class Experiment:
    """A registered experiment. For each preset, `takes` says how long one core takes, `seeds` how many are usual.

    `advice` is for someone who trains or changes models: what follows from the verdicts that are on record.
    """

    name: str
    title: str
    paper: str
    summary: str
    presets: Mapping[str, Any]
    takes: Mapping[str, str]
    claims: tuple[Claim, ...]
    seeds: Mapping[str, int]
    function: Callable[[Any, tuple[int, ...], Session], Result]
    advice: str = ""

    @property
    def card(self) -> ExperimentCard:
        words = self.name, self.title, self.paper, self.summary
        return ExperimentCard(*words, self.takes, self.seeds, self.claims, self.advice)

    def run(self, params: Any, seeds: tuple[int, ...], session: Session) -> Result:
        return self.function(params, seeds, session)

    def judged(self, result: Result) -> tuple[Claim, ...]:
        return tuple(claim.judged(result.measured) for claim in self.claims)


def experiment(
    *,
    title: str,
    paper: str,
    summary: str,
    presets: Mapping[str, Any],
    takes: Mapping[str, str],
    claims: tuple[Claim, ...],
    seeds: Mapping[str, int],
    advice: str = "",
) -> Callable[[Callable[[Any, tuple[int, ...], Session], Result]], Experiment]:
    """Turn a function into an experiment named like the function, which is named like its file."""

    def register(function: Callable[[Any, tuple[int, ...], Session], Result]) -> Experiment:
        if any(tuple(given) != PRESETS for given in (presets, takes, seeds)):
            raise TypeError(f"{function.__name__} must say for the presets {PRESETS} how long and with how many seeds")
        return Experiment(function.__name__, title, paper, summary, presets, takes, claims, seeds, function, advice)

    return register
