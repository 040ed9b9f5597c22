"""Which of the chosen measures a model does not allow, and why: learned shard by shard, said once of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.words import blocks
from attnscope.records.survey.survey import Survey

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
