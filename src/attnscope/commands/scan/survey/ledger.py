"""The ledger takes down what a scan observes, and becomes a survey.

A scan makes thousands of small observations: they are held per place and summed up many at a time. Because
every statistic merges exactly, when they are summed up cannot be seen in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from attnscope.commands.scan.survey.cell import Cell, Key, join
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError
from attnscope.core.words import blocks

Each = Callable[[Key, NDArray[np.float64], NDArray[np.int64]], None]
"""Told of a place, its numbers, one row for each sequence, and which sequences those are."""

_TOGETHER = 64  # places that are summed up in one call
HELD_VALUES = 4096  # numbers held per place before they are summed up: 32 kB


@dataclass
class _Held:
    """Observations of one place that wait to be summed up."""

    values: list[NDArray[np.float64]] = field(default_factory=list)
    where: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    samples: list[NDArray[np.int64] | None] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True)
class _Whole:
    """What a place holds, in one piece."""

    values: NDArray[np.float64]
    where: dict[str, NDArray[np.int64]]
    samples: NDArray[np.int64] | None

    @classmethod
    def of(cls, held: _Held) -> _Whole:
        names = sorted({name for labels in held.where for name in labels})
        known = [s for s in held.samples if s is not None]
        return cls(
            np.concatenate(held.values),
            {name: np.concatenate([labels[name] for labels in held.where]) for name in names},
            np.concatenate(known) if len(known) == len(held.samples) else None,
        )

    @property
    def kind(self) -> tuple[object, ...]:
        return self.values.shape, tuple(self.where), None if self.samples is None else self.samples.tobytes()


class Ledger:
    """Mutable on purpose, and only while a scan runs. `each` listens to what sums do not keep."""

    def __init__(self, cards: Mapping[str, Card], each: Each | None = None) -> None:
        self._each = each
        self._cards = dict(sorted(cards.items()))
        self._cells: dict[Key, Cell] = {}
        self._held: dict[Key, _Held] = {}

    @classmethod
    def from_survey(cls, survey: Survey) -> Ledger:
        """Go on where a survey stopped."""
        ledger = cls(survey.cards)
        ledger._cells = dict(survey.cells)
        return ledger

    def observe(  # the five words of a place, then what was seen there
        self,
        measure: str,
        part: str,
        stack: str,
        site: str,
        layer: int,
        values: Float[np.ndarray, " batch *shape"],
        where: Mapping[str, Int[np.ndarray, " batch *shape"]] | None = None,
        samples: Int[np.ndarray, " batch"] | None = None,
    ) -> None:
        """One row of `values` is one sequence, numbered in `samples`; weights come as one row without a sample."""
        key = Key(measure, part, stack, site, layer)
        card = self._cards.get(measure)
        if card is None:
            raise ValueError(f"the ledger has no card for {measure}")
        held = self._held.setdefault(key, _Held())
        if held.values and held.values[0].shape[1:] != values.shape[1:]:
            raise ValueError(f"{key} had shape {held.values[0].shape[1:]} and now {values.shape[1:]}")
        held.values.append(np.array(values, dtype=np.float64))
        held.where.append({name: np.array(label, dtype=np.int64) for name, label in (where or {}).items()})
        held.samples.append(None if samples is None else np.array(samples, dtype=np.int64))
        held.size += values.size
        if self._each is not None and samples is not None:
            self._each(key, held.values[-1], np.asarray(held.samples[-1]))
        # Weights count once, however often they are read.
        if held.size >= HELD_VALUES or card.scope == "weights":
            self._sum_up([key])

    def survey(self, provenance: Mapping[str, Any]) -> Survey:
        """Everything observed so far. The ledger can go on afterwards."""
        self._sum_up(list(self._held))
        return Survey(plain(provenance), dict(self._cards), dict(sorted(self._cells.items())))

    def _sum_up(self, keys: Sequence[Key]) -> None:
        """Places that hold numbers of the same sequences, heads and labels together."""
        alike: dict[Any, list[tuple[Key, _Whole]]] = {}
        for key in keys:
            whole = _Whole.of(self._held.pop(key))
            alike.setdefault(whole.kind, []).append((key, whole))
        for group in alike.values():
            for start in range(0, len(group), _TOGETHER):
                self._enter(group[start : start + _TOGETHER])

    def _enter(self, group: Sequence[tuple[Key, _Whole]]) -> None:
        wholes = [whole for _, whole in group]
        fresh = Cell.of_many([w.values for w in wholes], [w.where for w in wholes], wholes[0].samples)
        for (key, _), cell in zip(group, fresh, strict=True):
            before = self._cells.get(key)
            self._cells[key] = cell if before is None else join(self._cards[key.measure], before, cell)


# Which of the chosen measures a model does not allow, and why: learned shard by shard, said once of the whole.

_NO_PLACE = "no place for it"


@dataclass(frozen=True)
class Missing:
    """`lacking`: fields that no frame had, by measure; `without_meaning`: statistics that mean nothing in an exchanged
    attention, and the blocks where; `told`: what an earlier part of the same scan said."""

    lacking: Mapping[str, frozenset[str]] = field(default_factory=dict)
    without_meaning: Mapping[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Missing) -> Missing:
        lost = {
            name: {
                what: self.without_meaning.get(name, {}).get(what, frozenset())
                | other.without_meaning.get(name, {}).get(what, frozenset())
                for what in {*self.without_meaning.get(name, {}), *other.without_meaning.get(name, {})}
            }
            for name in {*self.without_meaning, *other.without_meaning}
        }
        lacking = {
            name: self.lacking.get(name, frozenset()) | other.lacking.get(name, frozenset())
            for name in {*self.lacking, *other.lacking}
        }
        told = {**self.told, **{name: why for name, why in other.told.items() if why != _NO_PLACE}}
        return Missing(lacking, lost, told)

    def to_json(self) -> dict[str, Any]:
        return {
            "lacking": {name: sorted(fields) for name, fields in sorted(self.lacking.items()) if fields},
            "without_meaning": {
                name: {what: sorted(layers) for what, layers in sorted(lost.items())}
                for name, lost in sorted(self.without_meaning.items())
                if lost
            },
            **({"told": dict(self.told)} if self.told else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Missing:
        return cls(
            {name: frozenset(fields) for name, fields in data["lacking"].items()},
            {
                name: {what: frozenset(layers) for what, layers in lost.items()}
                for name, lost in data["without_meaning"].items()
            },
            data.get("told", {}),
        )

    def said_of(self, survey: Survey) -> Survey:
        """The survey with a word on what is missing; a survey of nothing is refused."""
        measured = {key.measure for key in survey.cells}
        missing = {name: self._why(name) for name in survey.cards if name not in measured}
        if not survey.cells:
            reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise RefusalError(f"Nothing that was asked for can be measured in this model ({reasons}): choose others.")
        partly = [
            f"{survey.cards[name].title} was not measured everywhere: {_without_meaning(lost)}"
            for name, lost in self.without_meaning.items()
            if lost and name in measured
        ]
        said: dict[str, Any] = {"not_measured": missing} if missing else {}
        if partly:
            said["notes"] = [*survey.provenance.get("notes", ()), *partly]
        return replace(survey, provenance={**survey.provenance, **said}) if said else survey

    def _why(self, name: str) -> str:
        if self.lacking.get(name):
            return f"{', '.join(sorted(self.lacking[name]))} not found"
        if self.without_meaning.get(name):
            return _without_meaning(self.without_meaning[name])
        return self.told.get(name, _NO_PLACE)


def _without_meaning(lost: Mapping[str, frozenset[int]]) -> str:
    where = blocks(number for layers in lost.values() for number in layers)
    return f"{', '.join(sorted(lost))} of the exchanged attention in {where} does not mean what it means for softmax"
