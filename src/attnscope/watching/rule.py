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

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.finding import Severity
from attnscope.core.registry import leaves
from attnscope.watching.history import History

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
    return leaves("attnscope.watching.alarms", Rule)


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
