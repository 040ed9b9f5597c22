"""Cards of measures, and helpers for leaf rooms (folders in which each file defines one leaf).

A card says what a number means: its unit, its range, where it comes from, and when it raises an alarm. Cards are part
of every survey file, so that a survey explains itself on a machine that has neither torch nor the model.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import operator
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar

from attnscope.core.ranges import INFINITE, AtLeast, Finite, slack

Scope = Literal["stream", "attention", "weights", "training"]
Group = Literal["default", "deep", "training"]
Bound = Literal["entropy", "keys", "distance", "span"]
Parameters = ParamSpec("Parameters")
CardT = TypeVar("CardT")
LeafT = TypeVar("LeafT")


def names(room: str) -> tuple[str, ...]:
    """Return the names of the leaf files of a room such as `attnscope.measures`, without importing them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(room).__path__)))


def digest(room: str, name: str) -> str | None:
    """Return the hash of a leaf file, or None if it cannot be read. A stored card with another hash is out of date."""
    spec = find_spec(f"{room}.{name}")
    try:
        return hashlib.sha256(Path(str(spec.origin)).read_bytes()).hexdigest() if spec else None
    except OSError:
        return None


def leaf_decorator(
    make_card: Callable[Concatenate[str, Parameters], CardT], register: Callable[[CardT, Callable[..., Any]], LeafT]
) -> Callable[Parameters, Callable[[Callable[..., Any]], LeafT]]:
    """Return a decorator that turns a function into a leaf of the same name, which is also the name of its file.

    The decorator takes the fields of the card except the name. `register(card, function)` makes the leaf.
    """

    def decorator(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Callable[[Callable[..., Any]], LeafT]:
        return lambda function: register(make_card(function.__name__, *args, **kwargs), function)

    return decorator


def undefined(*args: Any, **kwargs: Any) -> Any:
    """Placeholder for the function of a leaf until the leaf is registered."""
    raise NotImplementedError


@dataclass(frozen=True)
class Alarm:
    """The rule by which a value raises an alarm: `value <relation> threshold`."""

    relation: Literal[">", "<"]
    threshold: Finite
    meaning: str

    def rings(self, value: float) -> bool:
        compare: Callable[[float, float], bool] = operator.gt if self.relation == ">" else operator.lt
        return compare(value, self.threshold)


@dataclass(frozen=True)
class Card:
    """Description of a measure, independent of any model.

    `low` and `high` bound what the measure can return. `sites` lists where it is measured: `stream` is the residual
    stream that enters a block, `middle` the stream after attention has written to it, `self` and `cross` are attention
    calls.
    """

    name: str
    title: str
    summary: str
    unit: str
    low: Annotated[Finite, INFINITE] = 0.0
    high: Annotated[Finite, INFINITE, AtLeast("low")] = math.inf
    citation: str = field(kw_only=True)
    scope: Scope = field(kw_only=True)
    group: Group = "default"
    sites: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("value",)
    alarm: Alarm | None = None
    log: bool = False  # draw it on a logarithmic axis
    of_block: bool = False  # compares the stream after block N with the stream before it; stored at position N + 1
    bound: Bound | None = None  # which quantity bounds it for a sequence of n tokens; `high` holds for any length

    def limits(self, tokens: int | None = None) -> tuple[float, float]:
        """Return the range that values in files may have: `low` to `high`, widened by the largest rounding error.

        For a measure with a `bound`, `high` holds up to 131072 keys. In a corpus of more `tokens`, a value may be
        larger.
        """
        most = 0.0 if self.bound is None or not tokens else math.log(tokens) if self.bound == "entropy" else tokens
        low, high = self.low, max(self.high, float(most))
        return low - slack(low), high + slack(high)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
