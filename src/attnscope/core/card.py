"""A card says what a number means: its unit, its range, where it comes from, when to worry.

Cards travel inside every survey file, so that a survey explains itself on a machine that has neither torch nor
the model.
"""

from __future__ import annotations

import hashlib
import importlib
import operator
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

# What leaf rooms hold, by their files alone: nothing in them is imported, so that help and lists cost no time.


def names(room: str) -> tuple[str, ...]:
    """The leaf files of a room such as `attnscope.measures`, which are its catalog."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(room).__path__)))


def digest(room: str, name: str) -> str | None:
    """Of the file that defines a leaf, so that what was written down about it can be told to be old; None where it
    cannot be read."""
    spec = find_spec(f"{room}.{name}")
    try:
        return hashlib.sha256(Path(str(spec.origin)).read_bytes()).hexdigest() if spec else None
    except OSError:
        return None


Scope = Literal["stream", "attention", "weights", "training"]
Group = Literal["default", "deep", "training"]
Bound = Literal["entropy", "keys", "distance"]


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
    """What is known about a measure before any model is seen."""

    name: str
    title: str
    summary: str
    unit: str
    low: float
    high: float
    citation: str
    scope: Scope
    group: Group = "default"
    sites: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("value",)
    alarm: Alarm | None = None
    log: bool = False
    of_block: bool = False  # a number of the stream that block N made: it stands where the stream leaves block N
    bound: Bound | None = None  # what bounds it at the length of a sequence, where `high` bounds it at any

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
