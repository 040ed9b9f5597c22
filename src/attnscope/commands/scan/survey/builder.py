"""Build a survey from observations, and keep track of the measures that a model does not support.

A scan makes thousands of small observations. They are held per place and summed many at a time. Every statistic merges
exactly, so it does not matter when they are summed.
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
"""A function that is called with a place, its values (one row per sequence), and the numbers of these sequences."""

_TOGETHER = 64  # places that are summed in one call
HELD_VALUES = 4096  # values held per place before they are summed: 32 kB
_NO_PLACE = "no place for it"


@dataclass
class _Pending:
    """Observations of one place that are not summed yet."""

    values: list[NDArray[np.float64]] = field(default_factory=list)
    where: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    samples: list[NDArray[np.int64] | None] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True)
class _Joined:
    """The pending observations of one place as one array."""

    values: NDArray[np.float64]
    where: dict[str, NDArray[np.int64]]
    samples: NDArray[np.int64] | None

    @classmethod
    def of(cls, pending: _Pending) -> _Joined:
        names = sorted({name for labels in pending.where for name in labels})
        known = [s for s in pending.samples if s is not None]
        return cls(
            np.concatenate(pending.values),
            {name: np.concatenate([labels[name] for labels in pending.where]) for name in names},
            np.concatenate(known) if len(known) == len(pending.samples) else None,
        )

    @property
    def kind(self) -> tuple[object, ...]:
        return self.values.shape, tuple(self.where), None if self.samples is None else self.samples.tobytes()


class SurveyBuilder:
    """Collects observations while a scan runs. `each` is called with the values of every sequence."""

    def __init__(self, cards: Mapping[str, Card], each: Each | None = None) -> None:
        self._each = each
        self._cards = dict(sorted(cards.items()))
        self._cells: dict[Key, Cell] = {}
        self._pending: dict[Key, _Pending] = {}

    @classmethod
    def from_survey(cls, survey: Survey) -> SurveyBuilder:
        """Return a builder that continues a survey."""
        builder = cls(survey.cards)
        builder._cells = dict(survey.cells)
        return builder

    def observe(
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
        """Add values at one place. Each row is one sequence, numbered in `samples`; measures of weights have one row
        and no `samples`."""
        key = Key(measure, part, stack, site, layer)
        card = self._cards.get(measure)
        if card is None:
            raise ValueError(f"there is no card for {measure}")
        pending = self._pending.setdefault(key, _Pending())
        if pending.values and pending.values[0].shape[1:] != values.shape[1:]:
            raise ValueError(f"{key} had shape {pending.values[0].shape[1:]} and now {values.shape[1:]}")
        pending.values.append(np.array(values, dtype=np.float64))
        pending.where.append({name: np.array(label, dtype=np.int64) for name, label in (where or {}).items()})
        pending.samples.append(None if samples is None else np.array(samples, dtype=np.int64))
        pending.size += values.size
        if self._each is not None and samples is not None:
            self._each(key, pending.values[-1], np.asarray(pending.samples[-1]))
        if pending.size >= HELD_VALUES or card.scope == "weights":  # weights count once
            self._sum([key])

    def survey(self, provenance: Mapping[str, Any]) -> Survey:
        """Return the survey of everything so far. More can be observed afterwards."""
        self._sum(list(self._pending))
        return Survey(plain(provenance), dict(self._cards), dict(sorted(self._cells.items())))

    def _sum(self, keys: Sequence[Key]) -> None:
        """Sum the pending observations; places with the same sequences, heads and labels are summed in one call."""
        alike: dict[Any, list[tuple[Key, _Joined]]] = {}
        for key in keys:
            joined = _Joined.of(self._pending.pop(key))
            alike.setdefault(joined.kind, []).append((key, joined))
        for places in alike.values():
            for start in range(0, len(places), _TOGETHER):
                group = places[start : start + _TOGETHER]
                values, where = [joined.values for _, joined in group], [joined.where for _, joined in group]
                new = Cell.of_many(values, where, group[0][1].samples)
                for (key, _), cell in zip(group, new, strict=True):
                    before = self._cells.get(key)
                    self._cells[key] = cell if before is None else join(self._cards[key.measure], before, cell)


@dataclass(frozen=True)
class NotMeasured:
    """The chosen measures that a model does not support, and the reasons. Merged from all shards.

    `lacking`: fields that no frame had, by measure. `without_meaning`: statistics that are undefined for an installed
    variant, with the blocks. `told`: reasons from an earlier part of the same scan.
    """

    lacking: Mapping[str, frozenset[str]] = field(default_factory=dict)
    without_meaning: Mapping[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: NotMeasured) -> NotMeasured:
        mine, theirs = self.without_meaning, other.without_meaning
        lost = {name: _union(mine.get(name, {}), theirs.get(name, {})) for name in {*mine, *theirs}}
        told = {**self.told, **{name: why for name, why in other.told.items() if why != _NO_PLACE}}
        return NotMeasured(_union(self.lacking, other.lacking), lost, told)

    def to_json(self) -> dict[str, Any]:
        return {
            "lacking": {name: sorted(fields) for name, fields in sorted(self.lacking.items()) if fields},
            "without_meaning": {
                name: {statistic: sorted(blocks) for statistic, blocks in sorted(lost.items())}
                for name, lost in sorted(self.without_meaning.items())
                if lost
            },
            **({"told": dict(self.told)} if self.told else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NotMeasured:
        lost = {
            name: {statistic: frozenset(blocks) for statistic, blocks in lost.items()}
            for name, lost in data["without_meaning"].items()
        }
        lacking = {name: frozenset(fields) for name, fields in data["lacking"].items()}
        return cls(lacking, lost, data.get("told", {}))

    def added_to(self, survey: Survey) -> Survey:
        """Return the survey with the reasons in its provenance. Refuse a survey without any value."""
        measured = {key.measure for key in survey.cells}
        reasons = {name: self._reason(name) for name in survey.cards if name not in measured}
        if not survey.cells:
            words = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            raise RefusalError(f"None of the chosen measures can be taken in this model ({words}): choose others.")
        notes = [
            f"{survey.cards[name].title} was not measured everywhere: {_lost_words(lost)}"
            for name, lost in self.without_meaning.items()
            if lost and name in measured
        ]
        added: dict[str, Any] = {"not_measured": reasons} if reasons else {}
        if notes:
            added["notes"] = [*survey.provenance.get("notes", ()), *notes]
        return replace(survey, provenance={**survey.provenance, **added}) if added else survey

    def _reason(self, name: str) -> str:
        if self.lacking.get(name):
            return f"{', '.join(sorted(self.lacking[name]))} not found"
        if self.without_meaning.get(name):
            return _lost_words(self.without_meaning[name])
        return self.told.get(name, _NO_PLACE)


def _union(a: Mapping[str, frozenset[Any]], b: Mapping[str, frozenset[Any]]) -> dict[str, frozenset[Any]]:
    return {name: a.get(name, frozenset()) | b.get(name, frozenset()) for name in {*a, *b}}


def _lost_words(lost: Mapping[str, frozenset[int]]) -> str:
    where = blocks(block for numbers in lost.values() for block in numbers)
    return f"{', '.join(sorted(lost))} of the exchanged attention in {where} does not mean what it means for softmax"
