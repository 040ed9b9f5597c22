"""Alarm rules: a rule reads the values of the last looks and yields the places where they have become dangerous.

    @rule(severity="warning", reads=("max_logit",), thresholds={"level": 100.0, "window": 200.0}, summary=..., ...)
    def max_logit_growth(history: History, limits: Limits) -> Iterator[Firing]:

Rules are leaf files of `alarms/`, one each, and need no torch. Every limit is in `thresholds` and can be changed:
`attnscope.watch(..., thresholds={"max_logit_growth.level": 50})`. Windows are counted in steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.watch.look import AlarmSeverity, Look
from attnscope.commands.watch.values import Values
from attnscope.core.card import leaf_decorator, undefined
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.registry import leaves
from attnscope.core.words import numeral

KEPT = 256  # looks in memory, besides the first
# It is NaN where a weight moves away from zero, which is harmless. NaN weights show in other measures.
_MAY_BE_NAN = ("update_ratio",)
Array = NDArray[np.float64]
NOWHERE: NDArray[np.bool_] = np.ones(0, dtype=bool)  # `where` of a firing that has no place


@dataclass(frozen=True)
class Track:
    """One measure in one stack and site over the last looks: `values` is [looks, blocks] or [looks, blocks, heads]."""

    stack: str
    site: str
    steps: NDArray[np.int64]
    values: Array
    first: Array  # values at the first look that has them

    @property
    def now(self) -> Array:
        last: Array = self.values[-1]
        return last

    def before(self, window: float) -> tuple[Array, int] | None:
        """Return the values `window` steps ago and their age in steps, or None at the first look.

        The look is the last one that is at least `window` steps old, or else the oldest known.
        """
        if len(self.steps) < 2:
            return None
        old = np.flatnonzero(self.steps <= self.steps[-1] - window)
        index = int(old[-1]) if len(old) else 0
        return self.values[index], int(self.steps[-1] - self.steps[index])

    def within(self, window: float) -> tuple[Array, int]:
        """Return the values of the last `window` steps, at least of the last two looks, and the steps they span."""
        begins = min(int((self.steps < self.steps[-1] - window).sum()), max(len(self.steps) - 2, 0))
        return self.values[begins:], int(self.steps[-1] - self.steps[begins])


class History:
    """The last looks of a run, as arrays for rules to read."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._first: dict[tuple[str, str, str, str], Values] = {}
        self.lowest = math.inf  # the lowest loss so far
        self.loss: float | None = None
        self.origin: str | None = None  # where numbers stop being finite, if known

    def add(self, look: Look) -> None:
        for values in look.values:
            self._first.setdefault(values.key, values)
        self.looks = [*self.looks[-KEPT + 1 :], look]
        self.add_loss(look.loss)

    def add_loss(self, loss: float | None) -> None:
        """Add the loss of a step, with or without a look."""
        self.loss = loss
        if loss is not None and math.isfinite(loss):
            self.lowest = min(self.lowest, loss)

    @property
    def step(self) -> int:
        return self.looks[-1].step

    def first(self, values: Values) -> Values | None:
        """Return the values at the first look that has them (gradients: step 1), or None if the shape differs."""
        first = self._first.get(values.key)
        return None if first is None or first.numbers.shape != values.numbers.shape else first

    def lost(self, look: Look) -> list[tuple[Values, NDArray[np.bool_]]]:
        """Return the values that are NaN now and were not at first, each with the blocks that lost a number.

        The padding of blocks with fewer heads is NaN from the first look on.
        """
        lost: list[tuple[Values, NDArray[np.bool_]]] = []
        for values in look.values:
            first = self.first(values)
            if first is not None and values.measure not in _MAY_BE_NAN:
                new = np.isnan(values.numbers) & ~np.isnan(first.numbers)
                if values.measure == "gradient_norm":
                    new &= ~_still(look, values)
                if new.any():
                    lost.append((values, np.asarray(new if new.ndim == 1 else new.any(axis=1))))
        return lost

    def training(self, name: str) -> tuple[NDArray[np.int64], Array]:
        """Return the steps and values of one field of `TrainingState` at the looks that know it.

        Empty unless the last look knows it.
        """
        found = [(look.step, getattr(look.training, name)) for look in self.looks if look.training is not None]
        known = [(step, value) for step, value in found if value is not None]
        if not known or known[-1][0] != self.step:
            known = []
        return np.array([s for s, _ in known], dtype=np.int64), np.array([v for _, v in known], dtype=np.float64)

    def tracks(self, measure: str, part: str = "value") -> Iterator[Track]:
        """Yield one track for every stack and site in which the last look measured it."""
        for last in self.looks[-1].values:
            if (last.measure, last.part) != (measure, part):
                continue
            found = [(look.step, look.find(measure, part, last.stack, last.site)) for look in self.looks]
            same = [(step, v.numbers) for step, v in found if v is not None and v.numbers.shape == last.numbers.shape]
            first = self.first(last)
            yield Track(
                last.stack,
                last.site,
                np.array([step for step, _ in same]),
                np.array([numbers for _, numbers in same]),
                last.numbers if first is None else first.numbers,
            )


def _still(look: Look, values: Values) -> NDArray[np.bool_]:
    """Return the blocks whose projection did not move while another block's did.

    Such a projection has no gradient because it is frozen, not because of NaN.
    """
    updates = look.find("update_ratio", values.part, values.stack, values.site)
    if updates is None or updates.numbers.shape != values.numbers.shape:
        return np.zeros(values.numbers.shape, dtype=bool)
    return np.asarray((updates.numbers == 0) & (updates.numbers > 0).any())


Limits = Mapping[str, float]


@dataclass(frozen=True)
class Firing:
    """A rule that fires at the last look in one stack and site.

    `where` is [blocks] or [blocks, heads], or empty if no place is known.
    """

    stack: str
    site: str
    where: NDArray[np.bool_]
    value: float
    threshold: float
    what: str  # the start of a sentence that continues with the place
    severity: AlarmSeverity | None = None  # None: the severity of the rule
    forecast: str = ""  # a clause on what an extrapolation gives, from `forecast`


def forecast(now: float, ratio: float, steps: int, level: float, step: int) -> str:
    """Return a clause on when `level` is reached if `now` goes on growing by `ratio` every `steps`, or "".

    now ratio^(k / steps) = level at k = steps log(level / now) / log(ratio).
    """
    if not (0 < now < level < math.inf and 1 < ratio < math.inf and steps > 0):
        return ""
    reached = step + math.ceil(steps * math.log(level / now) / math.log(ratio))
    return f"at this rate, an extrapolation, {numeral(level)} is reached at step {reached:,}; "


@dataclass(frozen=True)
class Rule:
    name: str
    severity: AlarmSeverity
    reads: tuple[str, ...]
    summary: str
    citation: str
    advice: str
    thresholds: Mapping[str, float]
    function: Callable[[History, Limits], Iterator[Firing]] = undefined

    def __call__(self, history: History, limits: Limits) -> Iterator[Firing]:
        return self.function(history, limits)


def _register(card: Rule, function: Callable[[History, Limits], Iterator[Firing]]) -> Rule:
    return replace(card, function=function)


rule = leaf_decorator(Rule, _register)


@cache
def rules() -> dict[str, Rule]:
    """Return every rule by name."""
    return leaves("attnscope.alarms", Rule)


def limits_of(changed: Mapping[str, Any] | None) -> dict[str, dict[str, float]]:
    """Return the thresholds of every rule, with the changed ones (`{"max_logit_growth.level": 50}`) applied."""
    limits = {name: dict(known.thresholds) for name, known in rules().items()}
    known = [f"{name}.{word}" for name, own in limits.items() for word in own]
    for word, value in (changed or {}).items():
        name, _, threshold = word.partition(".")
        if threshold not in limits.get(name, {}):
            raise RefusalError(f"There is no threshold called '{word}'.{nearest(word, known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise RefusalError(f"The threshold {word} cannot be {value}: give a number that is not negative.")
        limits[name][threshold] = float(value)
    return limits
