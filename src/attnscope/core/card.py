"""Cards of measures, and what all leaf rooms (folders in which each file defines one leaf) have in common.

A card says what a number means: its unit, its range, where it comes from, when to worry. Cards are part of every survey
file, so that a survey explains itself on a machine that has neither torch nor the model.
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
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

Scope = Literal["stream", "attention", "weights", "training"]
Group = Literal["default", "deep", "training"]
Bound = Literal["entropy", "keys", "distance"]
Parameters = ParamSpec("Parameters")
CardT = TypeVar("CardT")
LeafT = TypeVar("LeafT")


def names(room: str) -> tuple[str, ...]:
    """Return the names of the leaf files of a room such as `attnscope.measures`, without importing them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(room).__path__)))


def digest(room: str, name: str) -> str | None:
    """Return the hash of a leaf file, which shows whether a stored card is out of date; None if it cannot be read."""
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
    """Stand for the function of a leaf until it is registered."""
    raise NotImplementedError


@dataclass(frozen=True)
class Alarm:
    """A value that deserves a look: `value <relation> threshold`."""

    relation: Literal[">", "<"]
    threshold: float
    meaning: str

    def rings(self, value: float) -> bool:
        compare: Callable[[float, float], bool] = operator.gt if self.relation == ">" else operator.lt
        return compare(value, self.threshold)


@dataclass(frozen=True)
class Card:
    """What is known about a measure before any model is seen.

    `low` and `high` bound what the measure can return. `sites` says where along a block it is taken: `stream` enters a
    block, `middle` follows the attention write, `self` and `cross` are attention calls.
    """

    name: str
    title: str
    summary: str
    unit: str
    low: float = 0.0
    high: float = math.inf
    citation: str = field(kw_only=True)
    scope: Scope = field(kw_only=True)
    group: Group = "default"
    sites: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("value",)
    alarm: Alarm | None = None
    log: bool = False  # draw it on a logarithmic axis
    of_block: bool = False  # compares the stream behind block N with that before it, and stands where it leaves block N
    bound: Bound | None = None  # what bounds it for a sequence of n tokens, where `high` bounds it for any

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
