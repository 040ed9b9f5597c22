"""Convert a survey to a JSON document and back. A damaged document raises `FieldError` with the name of the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.provenance import Excerpts, Sequences
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.decoding import FieldError, decode, encode, plain

_DEEPEST = 10**5  # blocks: arrays are allocated for the largest number in the file
_LONGEST_NUMBER = 18  # digits
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError, IndexError)


def to_json(survey: Survey) -> dict[str, Any]:
    texts = {"excerpts": {str(sample): list(tokens) for sample, tokens in survey.excerpts.items()}}
    ids = {"sequences": {str(sample): encode(inputs) for sample, inputs in survey.sequences.items()}}
    return {
        "provenance": plain(survey.provenance),
        "cards": {name: encode(card) for name, card in sorted(survey.cards.items())},
        "cells": [{"key": list(key), **cell.to_json()} for key, cell in sorted(survey.cells.items())],
        **(texts if survey.excerpts else {}),
        **(ids if survey.sequences else {}),
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
    excerpts: Excerpts = _by_sample(data, "excerpts", tuple[str, ...])
    sequences: Sequences = _by_sample(data, "sequences", dict[str, tuple[int, ...]])
    return Survey(provenance, cards, cells, excerpts, sequences)


def _by_sample(data: Mapping[str, Any], field: str, kind: Any) -> dict[int, Any]:
    decoded = decode(dict[str, kind], data.get(field, {}))
    for sample in decoded:
        if not sample.isdecimal() or len(sample) > _LONGEST_NUMBER:
            raise FieldError(f"{field}['{sample[:20]}'] is not the number of a sequence")
    return {int(sample): value for sample, value in decoded.items()}


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(data.get(name), kind):
        raise FieldError(f"{name}: {'missing' if name not in data else 'of another type'}")
    return data[name]


def _key(words: Any, cards: Mapping[str, Card]) -> Key:
    whole = isinstance(words, list) and len(words) == len(Key._fields)
    if not whole or not all(isinstance(name, str) for name in words[:4]) or type(words[4]) is not int:
        raise FieldError("its key must be measure, part, stack, site and layer")
    key = Key(*words)
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


# The fields of provenance that pages, terminals and findings read. The rest is shown as it is.
_READ: Mapping[str, Mapping[str, Any]] = {
    "model": {"name": str, "class": str, "stacks": tuple[_Stack, ...]},
    "corpus": {"name": str, "sequences": int, "tokens": int, "files_read": int, "files_skipped": int},
}


def refuse_other_types(provenance: Mapping[str, Any]) -> None:
    """Check the types of provenance, so that a survey that was edited by hand cannot break its page."""
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
