"""A rule turns looks into alarms: it reads numbers of the last looks and says where they have become dangerous.

    @rule(severity="warning", reads=("max_logit",), thresholds={"level": 100.0, "window": 200.0}, summary=..., ...)
    def max_logit_growth(history: History, limits: Limits) -> Iterator[Ringing]:

Rules are leaf files of `watching/alarms/`, one each, and need no torch. Every number that decides is among the
`thresholds` of its card, and can be changed: `attnscope.watch(..., thresholds={"max_logit_growth.level": 50})`.
Windows are counted in steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.watch.look import Look, Values
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.finding import Severity
from attnscope.core.registry import leaves

# The last looks of a run as arrays, for rules to read. Needs no torch.

KEPT = 256  # looks; what came before them is forgotten, but for the first
# Has no number where weights leave zero; weights that are no numbers show in what layers give.
_NO_SIZE = ("update_ratio",)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Track:
    """One measure at one place over the last looks: `values` is [looks, layers] or [looks, layers, heads]."""

    stack: str
    site: str
    steps: NDArray[np.int64]
    values: Array
    first: Array  # at the first look of the run that has it

    @property
    def now(self) -> Array:
        last: Array = self.values[-1]
        return last

    def before(self, window: float) -> tuple[Array, int] | None:
        """At the last look that is `window` steps old or older, at the oldest known where none is, and how many steps
        ago that was: more than `window` where looks are rarer. None at the first look of all."""
        if len(self.steps) < 2:
            return None
        old = np.flatnonzero(self.steps <= self.steps[-1] - window)
        place = int(old[-1]) if len(old) else 0
        return self.values[place], int(self.steps[-1] - self.steps[place])

    def within(self, window: float) -> tuple[Array, int]:
        """The values of the looks of the last `window` steps, this one included, and how many steps they span. Where
        looks are rarer than that, this one and the one before it."""
        begins = min(int((self.steps < self.steps[-1] - window).sum()), max(len(self.steps) - 2, 0))
        return self.values[begins:], int(self.steps[-1] - self.steps[begins])


class History:
    """Grows by one look at a time."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._begun: dict[tuple[str, str, str, str], Values] = {}
        self.lowest = math.inf  # of all losses that were told
        self.loss: float | None = None
        self.broken: str | None = None  # where numbers stop being numbers, if that is known

    def add(self, look: Look) -> None:
        for one in look.values:
            self._begun.setdefault(one.key, one)
        self.looks = [*self.looks[-KEPT + 1 :], look]
        self.told(look.loss)

    def told(self, loss: float | None) -> None:
        """The loss of a step, looked at or not."""
        self.loss = loss
        if loss is not None and math.isfinite(loss):
            self.lowest = min(self.lowest, loss)

    @property
    def step(self) -> int:
        return self.looks[-1].step

    def begun(self, one: Values) -> Values | None:
        """The same measure of the same place at the first look that had it (gradients are not there before the first
        update, and all else is); None where that had another shape."""
        first = self._begun.get(one.key)
        return None if first is None or first.numbers.shape != one.numbers.shape else first

    def lost(self, look: Look) -> list[tuple[Values, NDArray[np.bool_]]]:
        """What is no number at this look and was one at the first that had it, with the layers. An empty place in a
        table of unequal layers is NaN from the first look on."""
        found: list[tuple[Values, NDArray[np.bool_]]] = []
        for one in look.values:
            before = self.begun(one)
            if before is not None and one.measure not in _NO_SIZE:
                gone = np.isnan(one.numbers) & ~np.isnan(before.numbers)
                if gone.any():
                    found.append((one, np.asarray(gone if gone.ndim == 1 else gone.any(axis=1))))
        return found

    def tracks(self, measure: str, part: str = "value") -> Iterator[Track]:
        """One for every stack and site in which the last look measured it."""
        for last in self.looks[-1].values:
            if (last.measure, last.part) != (measure, part):
                continue
            same = []
            for look in self.looks:
                found = look.find(measure, part, last.stack, last.site)
                if found is not None and found.numbers.shape == last.numbers.shape:
                    same.append((look.step, found.numbers))
            first = self.begun(last)
            yield Track(
                last.stack,
                last.site,
                np.array([step for step, _ in same]),
                np.array([numbers for _, numbers in same]),
                last.numbers if first is None else first.numbers,
            )


Limits = Mapping[str, float]


@dataclass(frozen=True)
class Ringing:
    """What a rule has seen at the last look, in one stack and site: `where` is [layers] or [layers, heads], or
    empty where no place is known."""

    stack: str
    site: str
    where: NDArray[np.bool_]
    value: float
    threshold: float
    what: str  # the beginning of a sentence; the place follows
    severity: Severity | None = None  # where not that of the rule's card


@dataclass(frozen=True)
class Rule:
    name: str
    severity: Severity
    reads: tuple[str, ...]
    summary: str
    citation: str
    advice: str
    thresholds: Mapping[str, float]
    function: Callable[[History, Limits], Iterator[Ringing]]

    def __call__(self, history: History, limits: Limits) -> Iterator[Ringing]:
        return self.function(history, limits)


def rule(
    *,
    severity: Severity,
    reads: tuple[str, ...],
    summary: str,
    citation: str,
    advice: str,
    thresholds: Mapping[str, float],
) -> Callable[[Callable[[History, Limits], Iterator[Ringing]]], Rule]:
    """Turn a function into a rule named like the function, which is named like its file."""

    def register(function: Callable[[History, Limits], Iterator[Ringing]]) -> Rule:
        return Rule(function.__name__, severity, reads, summary, citation, advice, dict(thresholds), function)

    return register


@cache
def rules() -> dict[str, Rule]:
    """Every rule, by name. Needs no torch."""
    return leaves("attnscope.alarms", Rule)


def limits_of(changed: Mapping[str, Any] | None) -> dict[str, dict[str, float]]:
    """The thresholds of every rule, with those that were changed: `{"max_logit_growth.level": 50}`."""
    limits = {name: dict(one.thresholds) for name, one in rules().items()}
    known = [f"{name}.{word}" for name, own in limits.items() for word in own]
    for word, value in (changed or {}).items():
        name, _, threshold = word.partition(".")
        if threshold not in limits.get(name, {}):
            raise RefusalError(f"There is no threshold called '{word}'.{nearest(word, known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise RefusalError(f"The threshold {word} cannot be {value}: give a number that is not negative.")
        limits[name][threshold] = float(value)
    return limits
