"""A survey as a JSON document, and back. What is wrong inside is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.provenance import Excerpts, Sequences
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.decoding import FieldError, decode, encode, plain

_DEEPEST = 10**5  # layers: arrays are made as deep as the largest one says
_LONGEST_NUMBER = 18  # digits
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError, IndexError)


def to_json(survey: Survey) -> dict[str, Any]:
    texts = {"excerpts": {str(sample): list(tokens) for sample, tokens in survey.excerpts.items()}}
    given = {"sequences": {str(sample): encode(inputs) for sample, inputs in survey.sequences.items()}}
    return {
        "provenance": plain(survey.provenance),
        "cards": {name: encode(card) for name, card in sorted(survey.cards.items())},
        "cells": [{"key": list(key), **cell.to_json()} for key, cell in sorted(survey.cells.items())],
        **(texts if survey.excerpts else {}),
        **(given if survey.sequences else {}),
    }


def from_json(data: Mapping[str, Any]) -> Survey:
    cards: dict[str, Card] = decode(dict[str, Card], _field(data, "cards", dict))
    for name, card in cards.items():
        if name != card.name or not card.parts:
            raise FieldError(f"cards['{name}'] is the card of something else")
    cells = {}
    for number, entry in enumerate(_field(data, "cells", list)):
        try:
            key = _key(entry["key"], cards)
            cells[key] = Cell.from_json(entry)
        except _DAMAGED as error:
            raise FieldError(f"cells[{number}]: {error}") from error
    provenance = _field(data, "provenance", dict)
    refuse_other_types(provenance)
    return Survey(provenance, cards, cells, _excerpts(data), _sequences(data))


def _excerpts(data: Mapping[str, Any]) -> Excerpts:
    read: dict[str, tuple[str, ...]] = decode(dict[str, tuple[str, ...]], data.get("excerpts", {}))
    return {_sample(sample, "excerpts"): tokens for sample, tokens in read.items()}


def _sequences(data: Mapping[str, Any]) -> Sequences:
    kind = dict[str, dict[str, tuple[int, ...]]]
    read: dict[str, dict[str, tuple[int, ...]]] = decode(kind, data.get("sequences", {}))
    return {_sample(sample, "sequences"): inputs for sample, inputs in read.items()}


def _sample(text: str, field: str) -> int:
    if not text.isdecimal() or len(text) > _LONGEST_NUMBER:
        raise FieldError(f"{field}['{text[:20]}'] is not the number of a sequence")
    return int(text)


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(data.get(name), kind):
        raise FieldError(f"{name}: {'missing' if name not in data else 'of another type'}")
    return data[name]


def _key(words: Any, cards: Mapping[str, Card]) -> Key:
    if not isinstance(words, list) or len(words) != len(Key._fields):
        raise FieldError("its key must be measure, part, stack, site and layer")
    key = Key(*words)
    if not all(isinstance(name, str) for name in key[:4]) or type(key.layer) is not int:
        raise FieldError("its key must be measure, part, stack, site and layer")
    if key.layer not in range(_DEEPEST):
        raise FieldError(f"layer {key.layer} is not one of a model")
    if key.measure not in cards or key.part not in cards[key.measure].parts:
        raise FieldError(f"no card explains {key.measure} {key.part}")
    if key.site not in cards[key.measure].sites:
        raise FieldError(f"{key.measure} is not taken at {key.site}")
    return key


@dataclass(frozen=True)
class _Stack:
    name: str
    layers: int | None = None
    heads: int | None = None
    causal: bool | None = None
    tokens: int | None = None


# What pages, terminals and findings read of provenance. The rest is shown as it is, whatever it is.
_READ: Mapping[str, Mapping[str, Any]] = {
    "model": {"name": str, "class": str, "stacks": tuple[_Stack, ...]},
    "corpus": {"name": str, "sequences": int, "tokens": int, "files_read": int, "files_skipped": int},
}


def refuse_other_types(provenance: Mapping[str, Any]) -> None:
    """A survey that was edited by hand must not make its page fail: what is read of it has the type it should have."""
    for section, kinds in _READ.items():
        part = provenance.get(section, {})
        if not isinstance(part, Mapping):
            raise FieldError(f"provenance['{section}'] is not described by named fields")
        for name, kind in kinds.items():
            if part.get(name) is not None:
                try:
                    decode(kind, part[name])
                except FieldError as error:
                    raise FieldError(f"provenance['{section}']['{name}']: {error}") from error
    if not isinstance(provenance.get("not_measured", {}), Mapping):
        raise FieldError("provenance['not_measured'] is not described by named fields")
